// Calls of operators, recorded so that they can be repeated with the same bits (N16). `capture/call.py` has the same for
// the dispatch mode, and tells which may be.

#pragma once

#include "kernel_settings.h"
#include "lanes.h"
#include "values.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace torch_lms {

// A tensor that looks at `storage` as `tensor` does at its own.
inline at::Tensor likeness(const at::Tensor& tensor, c10::Storage storage) {
  const auto& its = *tensor.unsafeGetTensorImpl();
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, std::move(storage), its.key_set(), its.dtype());
  auto& impl = *made.unsafeGetTensorImpl();
  impl.set_sizes_and_strides(its.sizes(), its.strides(), its.storage_offset());
  if (its.is_wrapped_number()) {
    impl.set_wrapped_number(true);
  }
  if (tensor.requires_grad()) {
    impl.set_requires_grad(true);
  }
  return made;
}

// One that looks at nothing: it holds no bytes.
inline at::Tensor outline(const at::Tensor& tensor) {
  return likeness(
      tensor,
      c10::make_intrusive<c10::StorageImpl>(
          c10::StorageImpl::use_byte_size_t{}, 0, c10::DataPtr(nullptr, tensor.device()), nullptr, /*resizable=*/false));
}

constexpr size_t most_small_bytes = 1 << 20;  // of the arguments of a call that are no pages, all together

// One that looks at a copy. Numbers are never written. What is larger is a placeholder (`capture/placeholder.py`): it has
// nothing to copy.
inline at::Tensor with_own_bytes(const at::Tensor& tensor) {
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number() || tensor.storage().nbytes() > most_small_bytes) {
    return tensor;
  }
  const Unseen unseen;
  return likeness(tensor, bytes_of(tensor.storage()).clone().storage());
}

// A call, and what it read, wrote and made. It keeps no page alive. Whoever lets go of one holds no lock: its small tensors
// go with it, which may need the GIL.
class Call {
 public:
  // What is known of a page among its arguments: how often it had been written by then, whether it writes it.
  struct Read {
    int64_t writes;
    bool is_written;
  };

  // `pages`: that of each tensor among the arguments, in their order; those that are none are kept by copy.
  template <typename Values>
  Call(
      const c10::OperatorHandle& op,
      const Values& arguments,
      std::vector<PageId> pages,
      std::map<PageId, Read> reads)
      : op_(op), pages_(std::move(pages)), reads_(std::move(reads)), settings_(kernel_settings_now()) {
    size_t place = 0;
    for (const auto& value : arguments) {
      arguments_.push_back(with_tensors(value, [&](const at::Tensor& tensor) {
        return pages_[place++] == no_page ? with_own_bytes(tensor) : outline(tensor);
      }));
    }
  }

  // It gave `results`. `page_of`: the page of a tensor.
  template <typename Values, typename PageOf>
  void made(const Values& results, const PageOf& page_of) {
    size_t place = 0;
    for (const auto& value : results) {
      every_tensor(value, [&](const at::Tensor& tensor) {
        const PageId page = page_of(tensor);
        if (page != no_page && reads_.count(page) == 0) {
          made_.push_back({place, page, outline(tensor)});
        }
        ++place;
        return true;
      });
    }
  }

  const c10::OperatorHandle& op() const {
    return op_;
  }

  const std::map<PageId, Read>& reads() const {
    return reads_;
  }

  // The pages that it made.
  std::vector<PageId> results() const {
    std::vector<PageId> pages;
    for (const Made& made : made_) {
      pages.push_back(made.page);
    }
    return pages;
  }

  // Repeats it, on the `storages` of the pages among its arguments. Those of the pages that it makes are added.
  void repeat(std::map<PageId, Held>& storages) const {
    Tampering::repeats();
    torch::jit::Stack stack;
    size_t place = 0;
    for (const auto& value : arguments_) {
      stack.push_back(with_tensors(value, [&](const at::Tensor& tensor) {
        const PageId page = pages_[place++];
        if (page != no_page) {
          return likeness(tensor, c10::Storage(storages.at(page)));
        }
        keep_for_now(tensor);
        return with_own_bytes(tensor);
      }));
    }
    {
      const WithKernelSettings as_then(settings_);
      const c10::impl::ExcludeDispatchKeyGuard had_their_turn{had_their_turn_};
      op_.callBoxed(&stack);
    }
    place = 0;
    auto next = made_.begin();
    for (const auto& value : stack) {
      every_tensor(value, [&](const at::Tensor& tensor) {
        if (next != made_.end() && next->place == place) {
          check(tensor, next->outline);
          storages[next->page] = Held::reclaim_copy(tensor.storage().unsafeGetStorageImpl());
          ++next;
        }
        ++place;
        return true;
      });
    }
    TORCH_CHECK(next == made_.end(), op_.operator_name(), " made fewer tensors than before");
  }

  // Modes and autograd saw it when it was recorded, and autocast's casts were recorded as calls of their own.
  static void hide_from(c10::DispatchKeySet keys) {
    had_their_turn_ = keys;
  }

 private:
  struct Made {
    size_t place;  // among the tensors of the results
    PageId page;
    at::Tensor outline;
  };

  // The stream of now reads this copy, which may be let go of before it is through with it.
  static void keep_for_now(const at::Tensor& copy) {
    if (!copy.is_cpu() && copy.storage().nbytes() > 0) {
      const Unseen unseen;
      const auto* guard = c10::impl::getDeviceGuardImpl(copy.device().type());
      bytes_of(copy.storage()).record_stream(guard->getStream(copy.device()));
    }
  }

  void check(const at::Tensor& made, const at::Tensor& before) const {
    const bool is_alike = made.dtype() == before.dtype() && made.sizes() == before.sizes() &&
        made.strides() == before.strides() && made.storage_offset() == before.storage_offset();
    TORCH_CHECK(
        is_alike, op_.operator_name(), " made ", made.dtype(), made.sizes(), " where it had made ", before.dtype(),
        before.sizes());
  }

  inline static c10::DispatchKeySet had_their_turn_;
  c10::OperatorHandle op_;
  std::vector<c10::IValue> arguments_;  // with an outline of each tensor on a page
  std::vector<PageId> pages_;
  std::map<PageId, Read> reads_;
  KernelSettings settings_;
  std::vector<Made> made_;
};

using Recorded = std::shared_ptr<const Call>;

// The calls of a step that may have to be repeated, by their positions in the plan. Any thread may call any method.
class Calls {
 public:
  // Returns what was there before, for the caller to let go of.
  Recorded keep(int position, Recorded call) {
    std::lock_guard<std::mutex> held(lock_);
    return std::exchange(calls_[position], std::move(call));
  }

  void clear() {
    std::map<int, Recorded> forgotten;
    std::lock_guard<std::mutex> held(lock_);
    forgotten.swap(calls_);
  }

  // Those at these positions; null where none was recorded.
  std::vector<Recorded> at(const std::vector<int>& positions) {
    std::vector<Recorded> found;
    std::lock_guard<std::mutex> held(lock_);
    for (const int position : positions) {
      const auto call = calls_.find(position);
      found.push_back(call == calls_.end() ? nullptr : call->second);
    }
    return found;
  }

 private:
  std::mutex lock_;
  std::map<int, Recorded> calls_;
};

}  // namespace torch_lms
