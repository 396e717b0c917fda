// Settings of PyTorch's by which a kernel, and so its rounding, is chosen. `capture/call.py` has the same for the dispatch
// mode.

#pragma once

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace torch_lms {

// How to ask for one, and how to set it.
struct KernelSetting {
  int64_t (*ask)();
  void (*set)(int64_t value);
};

template <at::Float32Backend backend, at::Float32Op operations>
constexpr KernelSetting precision() {
  return {
      [] { return static_cast<int64_t>(at::globalContext().float32Precision(backend, operations)); },
      [](int64_t value) {
        at::globalContext().setFloat32Precision(backend, operations, static_cast<at::Float32Precision>(value));
      }};
}

// Whether sums in less precision are allowed, and with twice the weight, whether they may be split.
constexpr int64_t number_of(at::CuBLASReductionOption option) {
  return int64_t{option == at::CuBLASReductionOption::AllowReducedPrecisionWithSplitK} +
      2 * int64_t{option != at::CuBLASReductionOption::DisallowReducedPrecisionDisallowSplitK};
}

// As `capture/call.py` has them. What others inherit from comes before them.
inline constexpr std::array kernel_settings = {
    KernelSetting{[] { return int64_t{at::GradMode::is_enabled()}; }, [](int64_t value) { at::GradMode::set_enabled(value); }},
    KernelSetting{
        [] { return int64_t{at::get_num_threads()}; }, [](int64_t value) { at::set_num_threads(static_cast<int>(value)); }},
    KernelSetting{
        [] { return static_cast<int64_t>(c10::get_default_dtype_as_scalartype()); },
        [](int64_t value) {
          c10::set_default_dtype(c10::scalarTypeToTypeMeta(static_cast<c10::ScalarType>(value)));
        }},
    KernelSetting{
        [] {
          const auto& context = at::globalContext();
          return int64_t{context.deterministicAlgorithms()} + 2 * int64_t{context.deterministicAlgorithmsWarnOnly()};
        },
        [](int64_t value) { at::globalContext().setDeterministicAlgorithms(value % 2, value / 2); }},
    KernelSetting{
        [] { return int64_t{at::globalContext().userEnabledMkldnn()}; },
        [](int64_t value) { at::globalContext().setUserEnabledMkldnn(value); }},
    KernelSetting{
        [] { return int64_t{at::globalContext().deterministicMkldnn()}; },
        [](int64_t value) { at::globalContext().setDeterministicMkldnn(value); }},
    KernelSetting{
        [] { return int64_t{at::globalContext().userEnabledNNPACK()}; },
        [](int64_t value) { at::globalContext().setUserEnabledNNPACK(value); }},
    KernelSetting{
        [] { return int64_t{at::globalContext().userEnabledCuDNN()}; },
        [](int64_t value) { at::globalContext().setUserEnabledCuDNN(value); }},
    KernelSetting{
        [] { return int64_t{at::globalContext().benchmarkCuDNN()}; },
        [](int64_t value) { at::globalContext().setBenchmarkCuDNN(value); }},
    KernelSetting{
        [] { return int64_t{at::globalContext().deterministicCuDNN()}; },
        [](int64_t value) { at::globalContext().setDeterministicCuDNN(value); }},
    KernelSetting{
        [] { return number_of(at::globalContext().allowFP16ReductionCuBLAS()); },
        [](int64_t value) { at::globalContext().setAllowFP16ReductionCuBLAS(value % 2, value / 2); }},
    KernelSetting{
        [] { return number_of(at::globalContext().allowBF16ReductionCuBLAS()); },
        [](int64_t value) { at::globalContext().setAllowBF16ReductionCuBLAS(value % 2, value / 2); }},
    KernelSetting{
        [] { return int64_t{at::globalContext().allowFP16AccumulationCuBLAS()}; },
        [](int64_t value) { at::globalContext().setAllowFP16AccumulationCuBLAS(value); }},
    KernelSetting{
        [] {  // of the calling thread: only its arithmetic tells
          const volatile double least = std::numeric_limits<double>::min();
          return int64_t{least / 2 == 0};
        },
        [](int64_t value) { at::globalContext().setFlushDenormal(value); }},
    precision<at::Float32Backend::GENERIC, at::Float32Op::ALL>(),
    precision<at::Float32Backend::MKLDNN, at::Float32Op::ALL>(),
    precision<at::Float32Backend::MKLDNN, at::Float32Op::MATMUL>(),
    precision<at::Float32Backend::MKLDNN, at::Float32Op::CONV>(),
    precision<at::Float32Backend::MKLDNN, at::Float32Op::RNN>(),
    precision<at::Float32Backend::CUDA, at::Float32Op::ALL>(),
    precision<at::Float32Backend::CUDA, at::Float32Op::MATMUL>(),
    precision<at::Float32Backend::CUDA, at::Float32Op::CONV>(),
    precision<at::Float32Backend::CUDA, at::Float32Op::RNN>(),
};

using KernelSettings = std::array<int64_t, kernel_settings.size()>;

inline KernelSettings kernel_settings_now() {
  KernelSettings values;
  std::transform(
      kernel_settings.begin(), kernel_settings.end(), values.begin(), [](const KernelSetting& each) { return each.ask(); });
  return values;
}

// Inside, the settings have these values.
class WithKernelSettings {
 public:
  explicit WithKernelSettings(const KernelSettings& values) {
    for (size_t place = 0; place < values.size(); ++place) {
      const int64_t before = kernel_settings[place].ask();
      if (before != values[place]) {
        kernel_settings[place].set(values[place]);
        changed_.emplace_back(place, before);
      }
    }
  }
  ~WithKernelSettings() {
    for (auto each = changed_.rbegin(); each != changed_.rend(); ++each) {
      kernel_settings[each->first].set(each->second);
    }
  }
  WithKernelSettings(const WithKernelSettings&) = delete;
  WithKernelSettings& operator=(const WithKernelSettings&) = delete;

 private:
  std::vector<std::pair<size_t, int64_t>> changed_;
};

}  // namespace torch_lms
