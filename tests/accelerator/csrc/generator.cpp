// Random numbers: a seed, and how many operators have drawn so far. What an operator draws is known when it is queued.

#include <array>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GeneratorImpl.h>

#include "kernels.h"
#include "streams.h"

namespace accelerator {
namespace {

constexpr auto kKey = c10::DispatchKey::PrivateUse1;

class Generator final : public c10::GeneratorImpl {
 public:
  explicit Generator(c10::DeviceIndex device)
      : c10::GeneratorImpl(c10::Device(c10::DeviceType::PrivateUse1, device), c10::DispatchKeySet(kKey)) {}

  void set_current_seed(uint64_t seed) override {
    seed_ = seed;
    drawn_ = 0;
  }

  void set_offset(uint64_t offset) override {
    drawn_ = offset;
  }

  uint64_t get_offset() const override {
    return drawn_;
  }

  uint64_t current_seed() const override {
    return seed_;
  }

  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return seed_;
  }

  void set_state(const c10::TensorImpl& state) override {
    const auto* values = static_cast<const uint64_t*>(state.data());
    TORCH_CHECK(state.numel() == 2 * sizeof(uint64_t), "expected a state of ", 2 * sizeof(uint64_t), " bytes");
    seed_ = values[0];
    drawn_ = values[1];
  }

  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    auto state = at::empty({2 * sizeof(uint64_t)}, at::TensorOptions(at::kByte));
    auto* values = reinterpret_cast<uint64_t*>(state.mutable_data_ptr<uint8_t>());
    values[0] = seed_;
    values[1] = drawn_;
    return state.getIntrusivePtr();
  }

 private:
  Generator* clone_impl() const override {
    auto* copy = new Generator(device_.index());
    copy->seed_ = seed_;
    copy->drawn_ = drawn_;
    return copy;
  }

  uint64_t seed_ = c10::default_rng_seed_val;
  uint64_t drawn_ = 0;
};

} // namespace

const at::Generator& default_generator(c10::DeviceIndex device) {
  static const auto* generators = new std::array<at::Generator, kDevices>{new_generator(0), new_generator(1)};
  return generators->at(device < 0 ? current_device() : device);
}

at::Generator new_generator(c10::DeviceIndex device) {
  return at::make_generator<Generator>(device < 0 ? current_device() : device);
}

at::Generator draw(const at::Generator& from) {
  at::Generator generator = from;
  std::lock_guard<std::mutex> lock(generator.mutex());
  const auto drawn = generator.get_offset();
  generator.set_offset(drawn + 1);
  return at::make_generator<at::CPUGeneratorImpl>(generator.current_seed() * 0x9E3779B97F4A7C15ULL + drawn);
}

} // namespace accelerator
