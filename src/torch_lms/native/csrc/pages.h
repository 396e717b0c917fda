// The table from storages to pages: who was born, who died, how many bytes live, and which pages may be used as they are.
//
// A page is known here by its storage, and to Python by its number. What Python knows of a page beside that, and all
// that is decided about it, stays there. Nothing here holds a Python object, so nothing here needs the GIL.

#pragma once

#include "calls.h"

#include <c10/core/StorageImpl.h>
#include <c10/util/SmallVector.h>
#include <c10/util/flat_hash_map.h>
#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace torch_lms {

// Not by way of a strong reference, which would concern the storage's Python object.
inline c10::weak_intrusive_ptr<c10::StorageImpl> weak_reference(c10::StorageImpl* storage) {
  c10::raw::weak_intrusive_ptr::incref(storage);
  return c10::weak_intrusive_ptr<c10::StorageImpl>::reclaim(storage);
}

// Which copies of a page's bytes exist: as `residency/state.py` has it. `other`: that is not known here.
enum class State : int8_t { resident = 0, clean = 1, evicting = 2, evicted = 3, fetching = 4, dropped = 5, other = 6 };

constexpr int no_tier = -1;
constexpr size_t max_tiers = 3;

inline bool is_on_device(State state) {
  return state != State::evicted && state != State::dropped && state != State::other;
}

// How a page is recomputed. As `policy/base.py` has it.
struct Recipe {
  int number;  // among the plan's recomputations; below 0: told when the plan was handed over
  std::vector<PageId> inputs;
  int64_t extra_bytes;
};

class Program;

struct Page {
  PageId id;
  c10::StorageImpl* storage;
  // Weak: PyTorch frees the bytes when the last tensor lets go, but keeps the address from being used again.
  c10::weak_intrusive_ptr<c10::StorageImpl> alive;
  int64_t nbytes;
  int device;
  bool is_young;  // born here: no engine has heard of it
  bool is_named;  // Python knows of it, and must hear of its death
  size_t place;   // in Pages::all_
  // Where the device has streams: those that may use it as it is. A young page was allocated for the first.
  c10::SmallVector<StreamId, 2> streams = {};
  State state = State::resident;
  int tier = no_tier;           // where its lower copy is
  bool has_new_copy = false;    // its lower copy was made since it was last away
  bool is_fixed = false;        // it must stay on the device, or is pinned
  std::shared_ptr<const Recipe> planned_recipe = {};  // the plan has it dropped now
  std::shared_ptr<const Recipe> recipe = {};          // it is dropped
  std::shared_ptr<Program> program = {};              // recomputes it, if Python does not
  int dependents = 0;           // pages that are dropped, and recomputed from it as it is
  uint64_t moved = 0;           // when its state last changed here, since Python last heard; 0 if it did not
  uint64_t due = 0;             // its places in the lists of `Moving`; 0 if it is not there
  uint64_t to_evict = 0;
  uint64_t to_fetch = 0;
  uint64_t to_drop = 0;
  uint64_t planned = 0;
  uint64_t dropped = 0;
  uint64_t needed_by = 0;       // the operation for which pages move
  int holds = 0;                // recomputations under way that need it
  int number = no_number;       // in the plan that is followed
  uint64_t seen_by = 0;         // the operation that looked it up last
  bool is_touched = false;      // since Python last heard: see `Touch`
  Touch touch = {};
  int64_t writes = 0;           // so far

  bool may_be_used_on(StreamId stream) const {
    return std::find(streams.begin(), streams.end(), stream) != streams.end();
  }

  bool is_dead() const {
    return alive.use_count() == 0;
  }

  bool is_usable() const {  // at once: nobody has to wait for its bytes
    return state == State::resident || state == State::clean;
  }
};

// Bytes of the pages of one device.
struct Account {
  bool is_open = false;  // whether Python has told of the device
  int64_t limit = 0;
  int64_t most_unseen = 0;  // from so many bytes of pages on it has to be known what operations create
  int64_t live = 0;  // includes the dead that nobody has found yet
  int64_t peak = 0;  // the most that `live` was since `take_peak`, where that was above `watched_from`
  int64_t watched_from = 0;
  int64_t unwatched = 0;  // the most that it was below, with some that were dead
  int64_t resident = 0;  // of these on the device; true while a plan is followed
  int64_t resident_peak = 0;
  std::array<int64_t, max_tiers> held = {};  // bytes of its pages in each lower tier; true while a plan is followed
};

// Not thread-safe: whoever calls holds the lock of the interposer.
class Pages {
 public:
  Page* find(const c10::StorageImpl* storage) const {
    auto found = by_storage_.find(storage);
    return found == by_storage_.end() ? nullptr : found->second;
  }

  Page* find(PageId id) const {
    auto found = by_id_.find(id);
    return found == by_id_.end() ? nullptr : found->second;
  }

  Page* add(c10::StorageImpl* storage, int device, bool is_young) {
    auto page = std::make_unique<Page>(Page{
        next_++,
        storage,
        weak_reference(storage),
        static_cast<int64_t>(storage->nbytes()),
        device,
        is_young,
        !is_young,
        all_.size()});
    Page* added = page.get();
    has_young_ = has_young_ || is_young;
    by_storage_[storage] = added;
    by_id_[added->id] = added;
    all_.push_back(std::move(page));
    grow(*added, added->nbytes);
    return added;
  }

  void resize(Page& page, int64_t nbytes) {
    grow(page, nbytes - page.nbytes);
    page.nbytes = nbytes;
  }

  void drop(Page* page) {
    leaving_ -= page->state == State::evicting;
    grow(*page, -page->nbytes);
    by_storage_.erase(page->storage);
    by_id_.erase(page->id);
    // The last takes its place. What is left of the storage goes once the lock is free.
    const size_t place = page->place;
    graveyard_.push_back(std::move(all_[place]));
    if (place + 1 < all_.size()) {
      all_[place] = std::move(all_.back());
      all_[place]->place = place;
    }
    all_.pop_back();
  }

  // Forget all whose storages died. Python hears of those that it knew.
  void sweep() {
    for (size_t place = 0; place < all_.size();) {
      Page* page = all_[place].get();
      if (page->is_dead()) {
        bury(page);
      } else {
        ++place;
      }
    }
    births_ = 0;
  }

  // The same for one, whose storage died.
  void bury(Page* page) {
    if (page->is_named) {
      deaths_.push_back(page->id);
    }
    if (journal != nullptr) {
      journal->died(page->id);
    }
    give_up_copy(*page);
    if (lanes && !page->is_named) {
      lanes->discard_later(page->id, /*is_gone=*/true);
    }
    set_recipe(*page, nullptr);
    drop(page);
  }

  // It is dropped, to be recomputed by `recipe`; or is not, without one.
  void set_recipe(Page& page, std::shared_ptr<const Recipe> recipe) {
    count_dependent(page, -1);
    page.recipe = std::move(recipe);
    count_dependent(page, 1);
  }

  // The page goes to another state. `tier`: where its lower copy is from now on.
  void set(Page& page, State state, int tier) {
    Account& its = account(page.device);
    its.resident += (is_on_device(state) - is_on_device(page.state)) * page.nbytes;
    count_copy(page, -page.nbytes);
    leaving_ += (state == State::evicting) - (page.state == State::evicting);
    page.state = state;
    page.tier = tier;
    count_copy(page, page.nbytes);
    if (page.moved == 0) {
      moved_.push_back(page.id);
    }
    page.moved = ++moves_;
  }

  // The living whose state changed since this was last asked, in the order of their last changes.
  std::vector<const Page*> take_moved() {
    std::vector<const Page*> moved;
    for (const PageId id : std::exchange(moved_, {})) {
      Page* page = find(id);
      if (page != nullptr && page->moved != 0) {
        moved.push_back(page);
      }
    }
    std::sort(moved.begin(), moved.end(), [](const Page* one, const Page* other) { return one->moved < other->moved; });
    for (const Page* page : moved) {
      by_id_[page->id]->moved = 0;
    }
    return moved;
  }

  // Its lower copy, if it has one, is worth nothing any more.
  void give_up_copy(Page& page) {
    if (page.tier != no_tier) {
      if (lanes && page.tier == lanes_tier) {  // not told to Python, which may never have heard of the page
        lanes->discard_later(page.id, /*is_gone=*/false);
      } else if (!spill || !spill->discard(page.id)) {
        stale_.push_back(page.id);
      }
      set(page, State::resident, no_tier);
    }
  }

  // Whether copies down are under way.
  bool are_any_leaving() const {
    return leaving_ != 0;
  }

  void is_stale(PageId id) {
    stale_.push_back(id);
  }

  // Pages whose lower copies were given up, and may be overwritten.
  std::vector<PageId> take_stale() {
    return std::exchange(stale_, {});
  }

  // A page was born at the present `live`: how much there is at most. Looks for the dead only where that may matter:
  // all pages are looked at each time.
  void note_peak(int device) {
    Account& its = account(device);
    if (its.live <= its.watched_from) {
      its.unwatched = std::max(its.unwatched, its.live);
    }
    const bool may_be_peak = its.live > std::max(its.peak, its.watched_from) || its.resident > its.resident_peak;
    if (may_be_peak || ++births_ >= std::max(min_births_, all_.size() / 8)) {
      sweep();
      its.peak = std::max(its.peak, its.live);
      its.resident_peak = std::max(its.resident_peak, its.resident);
    }
  }

  // The most that was alive since this was last asked. What stays well below is not known as exactly the next time.
  int64_t take_peak(int device) {
    Account& its = account(device);
    const int64_t peak = std::max(its.peak, its.unwatched);
    its.peak = its.unwatched = 0;
    its.watched_from = peak - peak / 64;
    return peak;
  }

  std::vector<PageId> take_deaths() {
    return std::exchange(deaths_, {});
  }

  // The young pages, which Python hears of now: the oldest first.
  std::vector<Page*> take_young() {
    std::vector<Page*> young;
    if (!std::exchange(has_young_, false)) {
      return young;
    }
    for (const auto& page : all_) {
      if (page->is_young) {
        page->is_young = false;
        page->is_named = true;
        young.push_back(page.get());
      }
    }
    std::sort(young.begin(), young.end(), [](const Page* one, const Page* other) { return one->id < other->id; });
    return young;
  }

  // What is left of storages that died; to be destroyed by the caller once it has let go of the lock.
  std::vector<std::unique_ptr<Page>> take_graveyard() {
    return std::exchange(graveyard_, {});
  }

  // Whether there is so little room left on any device that it has to be known what an operation creates, beside so many
  // others of which it may not be known.
  bool is_at_brim(int64_t others) const {
    return std::any_of(accounts_.begin(), accounts_.end(), [&](const Account& its) {
      return its.is_open && its.live + others * (its.limit - its.most_unseen) >= its.most_unseen;
    });
  }

  // Whether `nbytes` more may be more than there is room for on some device.
  bool may_exceed(double nbytes) const {
    return std::any_of(accounts_.begin(), accounts_.end(), [&](const Account& its) {
      return its.is_open && nbytes > static_cast<double>(its.limit - its.live);
    });
  }

  // Whether there is room for `nbytes` more on each.
  bool has_room(int64_t nbytes) {
    const auto has_room = [&] {
      return std::all_of(accounts_.begin(), accounts_.end(), [&](const Account& its) {
        return !its.is_open || its.live + nbytes <= its.limit;
      });
    };
    if (has_room()) {
      return true;
    }
    sweep();
    return has_room();
  }

  Account& account(int device) {
    const auto place = static_cast<size_t>(device + 1);
    if (place >= accounts_.size()) {
      accounts_.resize(place + 1);
    }
    return accounts_[place];
  }

  size_t size() const {
    return all_.size();
  }

  const std::vector<std::unique_ptr<Page>>& all() const {
    return all_;
  }

  Journal* journal = nullptr;    // hears of every death, while there is one
  std::shared_ptr<Spill> spill;  // has copies, if the session has one
  std::shared_ptr<Lanes> lanes;  // the same, those in the tier of that number
  int lanes_tier = no_tier;

 private:
  static constexpr size_t min_births_ = 64;  // between two looks for the dead that nothing else asks for

  void grow(const Page& page, int64_t nbytes) {
    Account& its = account(page.device);
    its.live += nbytes;
    its.resident += is_on_device(page.state) ? nbytes : 0;
  }

  void count_dependent(const Page& page, int count) {
    if (page.recipe) {
      for (const PageId id : page.recipe->inputs) {
        if (Page* input = find(id)) {
          input->dependents += count;
        }
      }
    }
  }

  void count_copy(const Page& page, int64_t nbytes) {
    if (page.tier != no_tier) {
      account(page.device).held[static_cast<size_t>(page.tier)] += nbytes;
    }
  }

  ska::flat_hash_map<const c10::StorageImpl*, Page*> by_storage_;
  ska::flat_hash_map<PageId, Page*> by_id_;
  std::vector<std::unique_ptr<Page>> all_;
  std::vector<std::unique_ptr<Page>> graveyard_;
  std::vector<PageId> deaths_;
  std::vector<PageId> stale_;
  std::vector<PageId> moved_;
  uint64_t moves_ = 0;
  int64_t leaving_ = 0;
  std::vector<Account> accounts_;  // by the device's index; that of the CPU is -1
  PageId next_ = 0;
  size_t births_ = 0;
  bool has_young_ = false;
};

}  // namespace torch_lms
