// What moves before an operation of the plan, decided as the engine in Python would (`pager/pager.py`), as long as all
// goes as planned: pages that the plan has away leave, those that it needs come, and room is found among the former.
//
// It is decided at once, and the table has it as if it were done. Python then performs one move after the other. What
// is not as planned is Python's to decide: then nothing was done here.

#pragma once

#include "pages.h"

#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace torch_lms {

// As `runtime/native_moves.py` has it.
enum class Act : int8_t { discard = 0, start_evict, finish_evict, release, start_fetch, finish_fetch, drop, recompute };

struct Move {
  Act act;
  PageId page;
  int tier;
};

// What was done, since Python last heard. As `pager/counters.py` has it.
struct Done {
  int64_t evictions = 0;
  int64_t evicted_bytes = 0;
  int64_t fetches = 0;
  int64_t fetched_bytes = 0;
  int64_t clean_drops = 0;
  int64_t from_one = 0;
  int64_t from_some = 0;
  int64_t from_all = 0;
  int64_t recomputes = 0;
  int64_t recomputed_bytes = 0;
};

// Pages in an order, each at most once. `place` is the member of a page that says where it stands.
class PageList {
 public:
  PageList(Pages& pages, uint64_t Page::* place) : pages_(pages), place_(place) {}

  void assign(const std::vector<PageId>& ids) {
    clear();
    for (const PageId id : ids) {
      if (Page* page = pages_.find(id)) {
        add(*page);
      }
    }
  }

  void clear() {
    for (const auto& [at, id] : order_) {
      if (Page* page = pages_.find(id)) {
        page->*place_ = 0;
      }
    }
    order_.clear();
  }

  void add(Page& page) {
    if (page.*place_ == 0) {
      page.*place_ = ++last_;
      order_.emplace(last_, page.id);
    }
  }

  void remove(Page& page) {
    if (page.*place_ != 0) {
      order_.erase(page.*place_);
      page.*place_ = 0;
    }
  }

  // Calls `visit` with those that live, in their order, until it returns false. The dead are forgotten here. Whether it
  // never did.
  template <typename Visit>
  bool every(const Visit& visit) {
    for (auto entry = order_.begin(); entry != order_.end();) {
      Page* page = pages_.find(entry->second);
      const auto place = entry++;
      if (page == nullptr) {
        order_.erase(place);
      } else if (!visit(*page)) {  // which may remove it
        return false;
      }
    }
    return true;
  }

  std::vector<PageId> ids() {
    std::vector<PageId> found;
    every([&](const Page& page) {
      found.push_back(page.id);
      return true;
    });
    return found;
  }

 private:
  Pages& pages_;
  uint64_t Page::* place_;
  std::map<uint64_t, PageId> order_;
  uint64_t last_ = 0;
};

// Not thread-safe: whoever calls holds the lock of the interposer.
class Moving {
 public:
  explicit Moving(Pages& pages)
      : due(pages, &Page::due),
        to_evict(pages, &Page::to_evict),
        to_fetch(pages, &Page::to_fetch),
        to_drop(pages, &Page::to_drop),
        planned(pages, &Page::planned),
        dropped(pages, &Page::dropped),
        pages_(pages) {}

  // As `policy/planned.py` has them.
  PageList due;
  PageList to_evict;
  PageList to_fetch;
  PageList to_drop;
  PageList planned;  // the plan has them dropped now, those included that were recomputed as inputs of others
  PageList dropped;  // they are
  std::vector<int64_t> capacities;  // of the lower tiers, nearest first
  // Without a plan, in bytes: for so much there shall be room, or pages that can leave without a wait; and so much room is
  // left for what the program creates, not for pages that come.
  int64_t reserve = 0;
  int64_t spared = 0;
  Done done;

  // Another session begins, which numbers its pages anew.
  void clear() {
    for (PageList* list : {&due, &to_evict, &to_fetch, &to_drop, &planned, &dropped}) {
      list->clear();
    }
  }

  // It is in use, or about to come: it is not due any more.
  void forget(Page& page) {
    due.remove(page);
    to_evict.remove(page);
    to_fetch.remove(page);
    to_drop.remove(page);
  }

  // An operation of the plan uses it.
  void use(Page& page) {
    forget(page);
    set_planned(page, nullptr);
  }

  // From here on the plan has the page dropped.
  void is_due(Page& page, std::shared_ptr<const Recipe> recipe) {
    due.add(page);
    to_drop.add(page);
    set_planned(page, std::move(recipe));
  }

  // Whether, and how, the plan has the page dropped.
  void set_planned(Page& page, std::shared_ptr<const Recipe> recipe) {
    page.planned_recipe = std::move(recipe);
    if (page.planned_recipe) {
      planned.add(page);
    } else {
      planned.remove(page);
    }
  }

  // Whether, and how, it is dropped.
  void set_dropped(Page& page, std::shared_ptr<const Recipe> recipe) {
    pages_.set_recipe(page, std::move(recipe));
    if (page.recipe) {
      dropped.add(page);
    } else {
      dropped.remove(page);
    }
  }

  // Forget all recipes.
  void clear_recipes() {
    planned.every([&](Page& page) {
      set_planned(page, nullptr);
      return true;
    });
    dropped.every([&](Page& page) {
      set_dropped(page, nullptr);
      return true;
    });
  }

  // The page is away from here on, as the plan has it.
  void is_due(Page& page) {
    due.add(page);
    to_evict.add(page);
  }

  void comes(Page& page) {
    forget(page);
    to_fetch.add(page);
  }

  // The moves before an operation that uses `used`, among them `written`, and creates `new_bytes`. `landed`: pages whose
  // copies have ended. None if Python has to decide.
  std::optional<std::vector<Move>> decide(
      int device,
      const std::vector<Page*>& used,
      const std::vector<PageId>& written,
      int64_t new_bytes,
      const std::vector<PageId>& landed) {
    moves_.clear();
    before_.clear();
    done_before_ = done;
    ++needs_;
    for (Page* page : used) {
      page->needed_by = needs_;
    }
    for (const PageId id : pages_.take_stale()) {
      moves_.push_back({Act::discard, id, no_tier});
    }
    for (const PageId id : landed) {
      if (Page* page = pages_.find(id)) {
        finish(*page);
      }
    }
    if (start_evictions() && drop() && recompute(device, used) && !are_inputs(written) &&
        make_room(device, used, new_bytes) && fetch(used)) {
      start_fetches(device, new_bytes);
      keep_reserve(device, new_bytes);
      pages_.note_peak(device);
      return moves_;
    }
    go_back(0);
    return std::nullopt;
  }

  // Of the moves only the first `count` were done.
  void go_back(size_t count) {
    for (auto entry = before_.rbegin(); entry != before_.rend(); ++entry) {
      if (Page* page = pages_.find(entry->id)) {
        pages_.set(*page, entry->state, entry->tier);
        page->has_new_copy = entry->has_new_copy;
        set_dropped(*page, entry->recipe);
      }
    }
    done = done_before_;
    const auto moves = std::exchange(moves_, {});
    for (size_t place = 0; place < moves.size(); ++place) {
      if (moves[place].act == Act::discard) {
        if (place >= count) {
          pages_.is_stale(moves[place].page);
        }
      } else if (place < count) {
        if (Page* page = pages_.find(moves[place].page)) {
          apply(*page, moves[place].act, moves[place].tier);
        }
      }
    }
  }

  // With so much room a page is to be fetched at once; 0 if none waits for it.
  int64_t wanted() {
    int64_t nbytes = 0;
    to_fetch.every([&](const Page& page) {
      nbytes = page.state == State::evicted ? page.nbytes + spared : 0;
      return nbytes == 0;
    });
    return nbytes;
  }

 private:
  struct Before {
    PageId id;
    State state;
    int tier;
    bool has_new_copy;
    std::shared_ptr<const Recipe> recipe;
  };

  bool is_candidate(const Page& page) const {
    return !page.is_fixed && !page.is_dead() && !is_needed(page) &&
        (page.is_usable() || page.state == State::evicting);
  }

  bool is_needed(const Page& page) const {
    return page.needed_by == needs_ || page.holds != 0;
  }

  void move(Page& page, Act act, int tier = no_tier) {
    before_.push_back({page.id, page.state, page.tier, page.has_new_copy, page.recipe});
    moves_.push_back({act, page.id, tier});
    apply(page, act, tier);
  }

  void apply(Page& page, Act act, int tier) {
    switch (act) {
      case Act::start_evict:
        pages_.set(page, State::evicting, tier);
        break;
      case Act::finish_evict:
        pages_.set(page, State::clean, page.tier);
        page.has_new_copy = true;
        ++done.evictions;
        done.evicted_bytes += page.nbytes;
        break;
      case Act::release:
        done.clean_drops += !page.has_new_copy;
        page.has_new_copy = false;
        pages_.set(page, State::evicted, page.tier);
        break;
      case Act::start_fetch:
        pages_.set(page, State::fetching, page.tier);
        break;
      case Act::finish_fetch:
        pages_.set(page, State::clean, page.tier);
        ++done.fetches;
        done.fetched_bytes += page.nbytes;
        break;
      case Act::drop:
        set_dropped(page, page.planned_recipe);
        pages_.set(page, State::dropped, no_tier);
        break;
      case Act::recompute:
        set_dropped(page, nullptr);
        pages_.set(page, State::resident, no_tier);
        ++done.recomputes;
        done.recomputed_bytes += page.nbytes;
        break;
      case Act::discard:
        break;
    }
  }

  void finish(Page& page) {
    if (page.state == State::evicting) {
      move(page, Act::finish_evict);
    } else if (page.state == State::fetching) {
      move(page, Act::finish_fetch);
    }
  }

  // To the nearest tier with room. Whether there is one.
  bool start_evict(Page& page) {
    const auto& held = pages_.account(page.device).held;
    for (size_t tier = 0; tier < capacities.size(); ++tier) {
      if (held[tier] + page.nbytes <= capacities[tier]) {
        move(page, Act::start_evict, static_cast<int>(tier));
        return true;
      }
    }
    return false;
  }

  // Of those that the plan has away from here on. Whether each found a tier.
  bool start_evictions() {
    return every_candidate(to_evict, [&](Page& page) { return free_or_evict(page); });
  }

  // As `PageList::every`, with those that may leave; the others are taken from the list.
  template <typename Visit>
  bool every_candidate(PageList& list, const Visit& visit) {
    return list.every([&](Page& page) {
      if (!is_candidate(page)) {
        list.remove(page);
        return true;
      }
      return visit(page);
    });
  }

  // Whether it found a tier, if it needed one.
  bool free_or_evict(Page& page) {
    if (page.state == State::clean) {
      move(page, Act::release);
    } else if (page.state == State::resident) {
      return start_evict(page);
    }
    return true;
  }

  // Those that the plan has dropped from here on. Whether that can be told, and those that cannot be found a tier.
  bool drop() {
    return every_candidate(to_drop, [&](Page& page) {
      bool is_any_needed = false;
      for (const PageId id : page.planned_recipe->inputs) {
        const Page* input = pages_.find(id);
        is_any_needed = is_any_needed || (input != nullptr && is_needed(*input));
        if (input != nullptr && input->is_fixed) {
          return false;  // another operation may be writing it
        }
      }
      return is_any_needed || drop(page) || free_or_evict(page);
    });
  }

  // Whether the page could be dropped.
  bool drop(Page& page) {
    if (page.state != State::resident || !page.planned_recipe) {
      return false;
    }
    for (const PageId id : page.planned_recipe->inputs) {
      const Page* input = pages_.find(id);
      if (input == nullptr || input->is_fixed || is_needed(*input)) {
        return false;
      }
    }
    move(page, Act::drop);
    return true;
  }

  // Those among the used pages that are dropped. Whether room for that was found among the due.
  bool recompute(int device, const std::vector<Page*>& used) {
    return std::all_of(used.begin(), used.end(), [&](Page* page) {
      return page->state != State::dropped || recompute(device, *page);
    });
  }

  // One, and before it what it needs.
  bool recompute(int device, Page& page) {
    const auto recipe = page.recipe;
    std::vector<Page*> inputs;
    for (const PageId id : recipe->inputs) {
      inputs.push_back(pages_.find(id));
      if (inputs.back() == nullptr) {
        return false;
      }
    }
    for (Page* input : inputs) {
      ++input->holds;
    }
    const bool are_there = recompute(device, inputs) &&
        make_room(device, inputs, page.nbytes + recipe->extra_bytes) && fetch(inputs);
    for (Page* input : inputs) {
      --input->holds;
    }
    if (are_there) {
      move(page, Act::recompute);
    }
    return are_there;
  }

  // Whether dropped pages are recomputed from one of these.
  bool are_inputs(const std::vector<PageId>& ids) const {
    return std::any_of(ids.begin(), ids.end(), [&](PageId id) {
      const Page* page = pages_.find(id);
      return page != nullptr && page->dependents != 0;
    });
  }

  // For `new_bytes`, and for those among the `needed` pages that are away. Whether it was found among the due.
  bool make_room(int device, const std::vector<Page*>& needed, int64_t new_bytes) {
    const Account& account = pages_.account(device);
    int64_t missing = new_bytes + account.resident - account.limit;
    for (const Page* page : needed) {
      missing += page->state == State::evicted ? page->nbytes : 0;
    }
    if (missing <= 0) {
      return true;
    }
    size_t count = 0;
    std::vector<Page*> leaving;
    due.every([&](Page& page) {
      if (!is_candidate(page)) {
        return true;
      }
      if (!drop(page)) {
        if (page.state == State::resident && !start_evict(page)) {
          return false;
        }
        leaving.push_back(&page);
      }
      ++count;
      missing -= page.nbytes;
      return missing > 0;
    });
    if (missing > 0) {
      return false;
    }
    for (Page* page : leaving) {
      finish(*page);
      move(*page, Act::release);
    }
    if (!has_candidates(device)) {
      ++done.from_all;
    } else if (count == 1) {
      ++done.from_one;
    } else {
      ++done.from_some;
    }
    return true;
  }

  bool has_candidates(int device) const {
    return std::any_of(pages_.all().begin(), pages_.all().end(), [&](const auto& page) {
      return page->device == device && is_candidate(*page);
    });
  }

  // The `needed` pages. Whether they can be had by a copy.
  bool fetch(const std::vector<Page*>& needed) {
    for (Page* page : needed) {
      if (page->state == State::other) {
        return false;
      }
      if (page->state == State::evicted) {
        move(*page, Act::start_fetch);
      }
    }
    for (Page* page : needed) {
      finish(*page);
    }
    return true;
  }

  // Of those that come soon, as long as there is room.
  void start_fetches(int device, int64_t new_bytes) {
    const Account& account = pages_.account(device);
    to_fetch.every([&](Page& page) {
      if (page.state != State::evicted) {
        return true;
      }
      if (account.limit - account.resident - new_bytes < page.nbytes + spared) {
        return false;
      }
      move(page, Act::start_fetch);
      return true;
    });
  }

  // Start to copy the next victims down, until there is the reserve, to the nearest page.
  void keep_reserve(int device, int64_t new_bytes) {
    if (reserve == 0) {
      return;
    }
    const Account& account = pages_.account(device);
    int64_t missing = reserve - (account.limit - account.resident - new_bytes);
    due.every([&](Page& page) {
      if (missing <= 0 || (page.state == State::resident && missing < page.nbytes / 2)) {
        return false;
      }
      if (!is_candidate(page)) {
        return true;
      }
      missing -= page.nbytes;
      return page.state != State::resident || start_evict(page);
    });
  }

  Pages& pages_;
  std::vector<Move> moves_;
  std::vector<Before> before_;
  Done done_before_;
  uint64_t needs_ = 0;
};

}  // namespace torch_lms
