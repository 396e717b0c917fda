// Making up for an attempt that ran out of memory, so that a second one gives what the first would have (N9).

#pragma once

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/core/stack.h>
#include <ATen/ops/clone_ops.h>
#include <ATen/ops/copy_ops.h>

#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace torch_lms {

class Undo {
 public:
  Undo(c10::DeviceType device_type, c10::DispatchKeySet below) : device_type_(device_type), below_(below) {}

  // Keep what an operation will write and draw. Whether that is possible: of pages it is not, and is not asked.
  template <typename Arguments>
  bool note(const std::vector<size_t>& writes, bool is_seeded, const Arguments& given) {
    for (const size_t place : writes) {
      const auto& value = given.begin()[static_cast<std::ptrdiff_t>(place)];
      if (value.isTensor() && value.toTensor().defined()) {
        keep(value.toTensor());
      } else if (value.isTensorList()) {
        for (const at::Tensor& tensor : value.toTensorList()) {
          keep(tensor);
        }
      } else if (!value.isNone() && !value.isTensor()) {
        return false;
      }
    }
    if (is_seeded) {
      keep(generator_among(given));
    }
    return true;
  }

  void perform() {
    if (generator_.has_value()) {
      const std::lock_guard<std::mutex> held(generator_->mutex());
      generator_->set_state(state_);
    }
    for (const auto& [tensor, bytes] : bytes_) {
      std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
    }
    for (auto& [tensor, copy] : copies_) {
      at::_ops::copy_::redispatch(tensor.key_set() & below_, tensor, copy, false);
    }
  }

 private:
  void keep(const at::Tensor& tensor) {
    if (tensor.is_cpu() && tensor.is_contiguous()) {
      bytes_.emplace_back(tensor, std::string(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()));
    } else {
      copies_.emplace_back(tensor, at::_ops::clone::redispatch(tensor.key_set() & below_, tensor, std::nullopt));
    }
  }

  void keep(at::Generator generator) {
    generator_ = std::move(generator);
    const std::lock_guard<std::mutex> held(generator_->mutex());
    state_ = generator_->get_state();
  }

  template <typename Arguments>
  at::Generator generator_among(const Arguments& given) const {
    for (const auto& value : given) {
      if (value.isGenerator()) {
        return value.toGenerator();
      }
    }
    return at::globalContext().defaultGenerator(c10::Device(device_type_, device_type_ == at::kCPU ? -1 : current()));
  }

  c10::DeviceIndex current() const {
    return c10::impl::getDeviceGuardImpl(device_type_)->getDevice().index();
  }

  c10::DeviceType device_type_;
  c10::DispatchKeySet below_;
  std::vector<std::pair<at::Tensor, std::string>> bytes_;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;
  std::optional<at::Generator> generator_;
  at::Tensor state_;
};

}  // namespace torch_lms
