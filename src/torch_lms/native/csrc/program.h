// How a dropped page is recomputed: by repeating calls, from pages as they were when it was dropped (N16). In Python:
// `runtime/recompute.py`.

#pragma once

#include "pages.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace torch_lms {

class Program {
 public:
  struct Input {
    PageId page;
    c10::weak_intrusive_ptr<c10::StorageImpl> alive;
    Held storage = {};  // held: if the program deletes it meanwhile, its bytes are still needed
  };

  Program(PageId page, std::vector<Recorded> calls) : page_(page), calls_(std::move(calls)) {}

  // Whether the calls were all recorded, and give the page as it is now, from `inputs` and nothing else. `writes_of`: how
  // often a page was written so far, -1 if it is none any more.
  template <typename WritesOf>
  bool makes_it_from(const std::vector<PageId>& inputs, const WritesOf& writes_of) const {
    std::map<PageId, int64_t> made;
    std::set<PageId> found;
    for (const Recorded& call : calls_) {
      if (!call) {
        return false;
      }
      for (const auto& [read, then] : call->reads()) {
        const auto before = made.find(read);
        const bool is_made = before != made.end();
        const int64_t now = is_made ? before->second : writes_of(read);
        if (now != then.writes || (then.is_written && !is_made)) {
          return false;  // it has changed
        }
        if (!is_made) {
          found.insert(read);
        }
      }
      for (const auto& [read, then] : call->reads()) {
        if (then.is_written) {
          ++made[read];
        }
      }
      for (const PageId result : call->results()) {
        made[result] = 0;
      }
    }
    const auto result = made.find(page_);
    return result != made.end() && result->second == writes_of(page_) &&
        found == std::set<PageId>(inputs.begin(), inputs.end());
  }

  // It is run on these. Whoever calls holds the lock of the interposer. Whether all are pages.
  bool takes(const std::vector<PageId>& inputs, const Pages& pages) {
    for (const PageId id : inputs) {
      const Page* page = pages.find(id);
      if (page == nullptr) {
        return false;
      }
      inputs_.push_back({id, page->alive});
    }
    return true;
  }

  // No lock is held, from here on. Whether they live.
  bool hold() {
    return std::all_of(inputs_.begin(), inputs_.end(), [](Input& input) {
      input.storage = input.alive.lock();
      return static_cast<bool>(input.storage);
    });
  }

  const std::vector<Input>& inputs() const {
    return inputs_;
  }

  // Gives the page's emptied `storage` its content again. What is made on the way is freed after its last use.
  void run(const Held& storage, int64_t nbytes) const {
    std::map<PageId, size_t> last_use;
    for (size_t place = 0; place < calls_.size(); ++place) {
      for (const auto& [read, then] : calls_[place]->reads()) {
        last_use[read] = place;
      }
      for (const PageId result : calls_[place]->results()) {
        last_use[result] = place;
      }
    }
    std::map<PageId, Held> storages;
    for (const Input& input : inputs_) {
      storages[input.page] = input.storage;
    }
    for (size_t place = 0; place < calls_.size(); ++place) {
      calls_[place]->repeat(storages);
      for (const auto& [page, last] : last_use) {
        if (last == place && page != page_) {
          storages.erase(page);
        }
      }
    }
    const Held made = storages.at(page_);
    TORCH_CHECK(
        static_cast<int64_t>(made->nbytes()) == nbytes, "a page of ", nbytes, " bytes was recomputed as one of ",
        made->nbytes());
    storage->set_data_ptr_noswap(made->set_data_ptr(c10::DataPtr(nullptr, storage->device())));
    storage->set_nbytes(static_cast<size_t>(nbytes));
  }

 private:
  PageId page_;
  std::vector<Recorded> calls_;
  std::vector<Input> inputs_;
};

}  // namespace torch_lms
