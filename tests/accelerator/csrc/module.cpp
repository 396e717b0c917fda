// The test accelerator as PyTorch and Python see it.

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/extension.h>

#include "kernels.h"
#include "memory.h"
#include "streams.h"

namespace accelerator {
namespace {

constexpr auto kDevice = c10::DeviceType::PrivateUse1;

// What streams and events were asked: a driver takes the host some microseconds for each.
enum class Call { record, block, query, elapsed };
std::array<std::atomic<int64_t>, 4> calls;

void count(Call call) {
  ++calls.at(static_cast<size_t>(call));
}

py::dict take_calls() {
  const auto take = [](Call call) { return calls.at(static_cast<size_t>(call)).exchange(0); };
  py::dict taken;
  taken["record"] = take(Call::record);
  taken["block"] = take(Call::block);
  taken["query"] = take(Call::query);
  taken["elapsed"] = take(Call::elapsed);
  return taken;
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override {
    return kDevice;
  }

  c10::Device exchangeDevice(c10::Device device) const override {
    const auto before = getDevice();
    set_current_device(device.index() < 0 ? before.index() : device.index());
    return before;
  }

  c10::Device getDevice() const override {
    return c10::Device(kDevice, current_device());
  }

  void setDevice(c10::Device device) const override {
    if (device.index() >= 0) {
      set_current_device(device.index());
    }
  }

  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0) {
      set_current_device(device.index());
    }
  }

  c10::DeviceIndex deviceCount() const noexcept override {
    return kDevices;
  }

  c10::Stream getStream(c10::Device device) const override {
    return current_stream(device.index());
  }

  c10::Stream getDefaultStream(c10::Device device) const override {
    const auto index = device.index() < 0 ? current_device() : device.index();
    return c10::Stream(c10::Stream::DEFAULT, c10::Device(kDevice, index));
  }

  c10::Stream getNewStream(c10::Device device, int) const override {
    return new_stream(device.index());
  }

  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return new_stream(device.index());
  }

  c10::Stream exchangeStream(c10::Stream stream) const override {
    const auto before = current_stream(stream.device_index());
    set_current_stream(stream);
    return before;
  }

  bool queryStream(const c10::Stream& stream) const override {
    return queue_of(stream).is_idle();
  }

  void synchronizeStream(const c10::Stream& stream) const override {
    queue_of(stream).finish();
    raise_failure();
  }

  void synchronizeDevice(c10::DeviceIndex device) const override {
    synchronize(device);
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    count(Call::record);
    if (*event == nullptr) {
      *event = new Event();
    }
    static_cast<Event*>(*event)->record(queue_of(stream));
  }

  void block(void* event, const c10::Stream& stream) const override {
    count(Call::block);
    if (event != nullptr) {
      static_cast<Event*>(event)->block(queue_of(stream));
    }
  }

  bool queryEvent(void* event) const override {
    count(Call::query);
    return event == nullptr || static_cast<Event*>(event)->reached();
  }

  void synchronizeEvent(void* event) const override {
    if (event != nullptr) {
      static_cast<Event*>(event)->wait();
      raise_failure();
    }
  }

  double elapsedTime(void* first, void* second, c10::DeviceIndex) const override {
    count(Call::elapsed);
    const auto at = [](void* event) { return static_cast<Event*>(event)->reached_ns->load(); };
    return static_cast<double>(at(second) - at(first)) / 1e6;
  }

  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }

  void recordDataPtrOnStream(const c10::DataPtr& memory, const c10::Stream& stream) const override {
    record_stream(memory, stream);
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override {
    return true;
  }

  bool isAvailable() const override {
    return true;
  }

  bool hasPrimaryContext(c10::DeviceIndex) const override {
    return true;
  }

  c10::DeviceIndex deviceCount() const override {
    return kDevices;
  }

  c10::DeviceIndex getCurrentDevice() const override {
    return current_device();
  }

  void setCurrentDevice(c10::DeviceIndex device) const override {
    set_current_device(device);
  }

  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const auto before = current_device();
    set_current_device(device);
    return before;
  }

  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return device < 0 ? current_device() : exchangeDevice(device);
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device);
  }

  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return new_generator(device);
  }

  c10::Allocator* getPinnedMemoryAllocator() const override {
    return pinned_allocator();
  }

  bool isPinnedPtr(const void* address) const override {
    return is_pinned(address);
  }

  c10::Device getDeviceFromPtr(void*) const override {
    return c10::Device(kDevice, current_device());
  }

  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t nbytes) const override {
    resize_storage(storage, nbytes);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Registered {
  Registered() {
    at::RegisterPrivateUse1HooksInterface(new Hooks());
    c10::SetAllocator(kDevice, device_allocator());
    at::setHostAllocator(kDevice, pinned_allocator());
  }
} registered;

Pace pace_of(const std::string& name) {
  if (name == "eager") {
    return Pace::eager;
  }
  if (name == "delayed") {
    return Pace::delayed;
  }
  if (name == "lazy") {
    return Pace::lazy;
  }
  TORCH_CHECK(name == "mixed", "expected eager, delayed, lazy or mixed; got ", name);
  return Pace::mixed;
}

py::dict memory_figures(c10::DeviceIndex device) {
  const auto now = figures(device);
  py::dict found;
  found["capacity"] = now.capacity;
  found["allocated"] = now.allocated;
  found["reserved"] = now.reserved;
  found["peak_allocated"] = now.peak_allocated;
  found["peak_reserved"] = now.peak_reserved;
  found["freed"] = now.freed;
  return found;
}

} // namespace
} // namespace accelerator

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using namespace accelerator;
  const auto unlocked = py::call_guard<py::gil_scoped_release>();
  m.def("device_count", [] { return static_cast<int>(kDevices); });
  m.def("current_device", [] { return static_cast<int>(current_device()); });
  m.def("set_device", [](int device) { set_current_device(static_cast<c10::DeviceIndex>(device)); });
  m.def("synchronize", [](int device) { synchronize(static_cast<c10::DeviceIndex>(device)); }, unlocked);
  m.def("schedule", [](const std::string& pace, uint64_t seed) { set_schedule(pace_of(pace), seed); });
  m.def("set_capacity", [](int device, size_t nbytes) { set_capacity(static_cast<c10::DeviceIndex>(device), nbytes); });
  m.def("memory_figures", [](int device) { return memory_figures(static_cast<c10::DeviceIndex>(device)); });
  m.def("reset_peaks", [](int device) { reset_peaks(static_cast<c10::DeviceIndex>(device)); });
  m.def("empty_cache", [] { empty_cache(); }, unlocked);
  m.def("set_poison_at_free", &set_poison_at_free);
  m.def("watch_races", &watch_races);
  m.def("take_races", &take_races);
  m.def("take_calls", &take_calls);
  m.def("default_generator", [](int device) { return default_generator(static_cast<c10::DeviceIndex>(device)); });
  m.def("register_host", [](size_t address, size_t nbytes) {
    return register_pinned(reinterpret_cast<void*>(address), nbytes);
  });
  m.def("unregister_host", [](size_t address) { return unregister_pinned(reinterpret_cast<void*>(address)); });
}
