// Pages of a device with streams on their way to page-locked host memory and back, without Python. Who waits for whom is
// told in `runtime/streams.py`, and numbered as there. What goes to a disk is copied in Python, which asks here for waits.

#pragma once

#include "spill.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <string>

namespace torch_lms {

using StreamId = int64_t;

// Events of streams, which a device makes once, and records time and again.
class Events {
 public:
  using Owned = std::unique_ptr<c10::Event>;

  static Owned recorded(const c10::Stream& stream) {
    Owned event = unused(stream.device());
    event = event ? std::move(event) : std::make_unique<c10::Event>(stream.device_type(), c10::EventFlag::BACKEND_DEFAULT);
    event->record(stream);
    return event;
  }

  // Nobody asks any more what was recorded last.
  static void give_back(Owned event) {
    std::lock_guard<std::mutex> held(lock_);
    of(event->device()).push_back(std::move(event));
  }

 private:
  static Owned unused(const c10::Device& device) {
    std::lock_guard<std::mutex> held(lock_);
    auto& events = of(device);
    if (events.empty()) {
      return nullptr;
    }
    Owned event = std::move(events.back());
    events.pop_back();
    return event;
  }

  static std::vector<Owned>& of(const c10::Device& device) {
    static auto* all = new std::map<c10::DeviceIndex, std::vector<Owned>>();  // the device may be gone before the process
    return (*all)[device.index()];
  }

  inline static std::mutex lock_;
};

// A place in the work of a stream.
class Moment {
 public:
  explicit Moment(const c10::Stream& stream) : event_(Events::recorded(stream)) {}
  ~Moment() {
    if (is_child) {
      static_cast<void>(event_.release());
    } else {
      Events::give_back(std::move(event_));
    }
  }
  Moment(const Moment&) = delete;
  Moment& operator=(const Moment&) = delete;

  bool is_past() const {
    if (!is_past_) {
      is_past_ = event_->query();
    }
    return is_past_;
  }
  void wait() const {
    event_->synchronize();
    is_past_ = true;
  }
  // What is asked of `stream` from now on runs after it.
  void hold_up(const c10::Stream& stream) const {
    if (!is_past_) {
      event_->block(stream);
    }
  }
  double seconds_since(const Moment& earlier) const {
    return earlier.event_->elapsedTime(*event_) / 1e3;
  }

  inline static std::atomic<bool> is_child = false;  // of a fork: it must not call the device, not even to destroy an event

 private:
  Events::Owned event_;
  mutable std::atomic<bool> is_past_ = false;  // the device, which takes its time, was asked and said so
};

using Mark = std::shared_ptr<Moment>;

// What was asked of a stream: a copy, or a wait of the program's for one. It began when all moments of `after` had come,
// and a copy not before that ended which was asked for before it.
struct Asked {
  enum class Kind : int8_t { down = 0, up = 1, stall = 2 } kind;
  c10::SmallVector<Mark, 2> after;
  Mark ended;
  int64_t nbytes;
  PageId page;
};

// Inside, what PyTorch does for us is no operation of the program's.
struct Unseen {
  c10::impl::ExcludeDispatchKeyGuard by_all{keys};
  inline static c10::DispatchKeySet keys;  // that hear of operations; told when our own is known
};

// All bytes of a storage.
inline at::Tensor bytes_of(const c10::Storage& storage) {
  const c10::DispatchKeySet keys(c10::computeDispatchKey(at::kByte, at::kStrided, storage.device()));
  at::Tensor bytes = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), keys, caffe2::TypeMeta::Make<uint8_t>());
  bytes.unsafeGetTensorImpl()->set_sizes_contiguous({static_cast<int64_t>(storage.nbytes())});
  return bytes;
}

// Any thread may call any method, but for `discard_later` with neither the GIL nor another lock: the device may need the GIL.
class Lanes {
 public:
  explicit Lanes(const std::string& device) : device_(device), out_(stream(0)), in_(stream(0)) {}

  // The streams of copies down, and up.
  void copy_on(StreamId out, StreamId in) {
    const auto turn = my_turn();
    out_ = stream(out);
    in_ = stream(in);
  }

  // -- host memory ----------------------------------------------------------------------------------------------------

  // Pages may be copied to this page-locked memory. `offset`: its place in a space in which no page lies across two
  // pieces of memory.
  void grant(int64_t offset, int64_t length, uintptr_t address) {
    const auto turn = my_turn();
    addresses_[offset] = address;
    extents_.give(offset, length);
  }

  // Whether all of what was granted so is free: then it is granted no more.
  bool take_back(int64_t offset, int64_t length) {
    const auto turn = my_turn();
    return extents_.take_away(offset, length) && addresses_.erase(offset) != 0;
  }

  // Of what was granted.
  int64_t free_bytes() {
    const auto turn = my_turn();
    reuse_retired();
    return extents_.free_bytes();
  }

  // Wait until memory is free that a copy still reads or writes. Whether there is any.
  bool wait_for_memory() {
    std::vector<Mark> last;
    {
      const auto turn = my_turn();
      if (retired_.empty()) {
        return false;
      }
      last = retired_.front().copies;
    }
    for (const Mark& mark : last) {
      mark->wait();
    }
    const auto turn = my_turn();
    reuse_retired();
    return true;
  }

  // -- streams --------------------------------------------------------------------------------------------------------

  // Now, on the current stream. All that used a page before `tick` has been asked for.
  Mark mark(int64_t tick) {
    const auto turn = my_turn();
    const StreamId current = current_stream();
    auto& marks = marks_[current];
    marks.emplace_back(tick, record(stream(current)));
    if (marks.size() > 2 * most_marks) {
      marks.erase(marks.begin(), marks.begin() + most_marks);
    }
    return marks.back().second;
  }

  // The same, without a tick.
  Mark now() const {
    return record(stream(current_stream()));
  }

  void forget_marks() {
    const auto turn = my_turn();
    marks_.clear();
  }

  // An operation is about to use the page on the current stream. Whether that had not used it yet, as it is.
  bool use(PageId page, const Held& storage) {
    const auto turn = my_turn();
    const StreamId current = current_stream();
    const auto found = uses_.find(page);
    if (found == uses_.end()) {
      uses_[page] = Use{current, {current}};
      return true;
    }
    Use& use = found->second;
    if (use.is_known_to(current)) {
      return false;
    }
    if (use.arrived) {
      await(current, use.arrived, {});
      keep_for(storage, stream(current));  // 5
    }
    if (use.read) {
      use.read->hold_up(stream(current));  // 6
    }
    use.streams.push_back(current);
    return true;
  }

  // Its memory was allocated for `home`.
  void born(PageId page, StreamId home) {
    const auto turn = my_turn();
    uses_.emplace(page, Use{home, {home}});
  }

  // Its memory may have been allocated on any stream.
  void adopt(PageId page) {
    const auto turn = my_turn();
    use_of(page).is_adopted = true;
  }

  // On which it may be used as it is.
  std::vector<StreamId> streams_of(PageId page) {
    const auto turn = my_turn();
    const auto found = uses_.find(page);
    return found == uses_.end() ? std::vector<StreamId>{}
                                : std::vector<StreamId>(found->second.streams.begin(), found->second.streams.end());
  }

  std::vector<PageId> known() {
    const auto turn = my_turn();
    std::vector<PageId> pages;
    for (const auto& [page, use] : uses_) {
      pages.push_back(page);
    }
    return pages;
  }

  // -- down -----------------------------------------------------------------------------------------------------------

  // Start to copy the page down, after its `last_use`. Whether there is room for it.
  bool start_evict(PageId page, const Held& storage, int64_t last_use) {
    const auto turn = my_turn();
    discard(page);
    reuse_retired();
    const auto nbytes = static_cast<int64_t>(storage->nbytes());
    const int64_t length = (nbytes + grain - 1) / grain * grain;
    const int64_t offset = extents_.take(length);
    if (offset < 0) {
      return false;
    }
    Copy& copy = copies_[page];
    copy.offset = offset;
    copy.length = length;
    copy.nbytes = nbytes;
    try {
      copy.storage = storage;
      under_way_.push_back(page);
      auto after = await_uses(use_of(page), last_use);
      copy_down(storage, copy);
      Tampering::fail();
      copy.done = record(out_);
      note_copy(Asked::Kind::down, std::move(after), copy.done, nbytes, page);
    } catch (...) {
      give_up(page);
      throw;
    }
    return true;
  }

  // A copy down to elsewhere waits as these do.
  void await_uses(PageId page, int64_t last_use) {
    const auto turn = my_turn();
    await_uses(use_of(page), last_use);
  }

  // The copy counts from now on. The host waits for nothing. `here`: now, on the current stream, if that is known; returns
  // the same, as it is afterwards.
  Mark finish_evict(PageId page, Mark here = {}) {
    const auto turn = my_turn();
    const auto found = copies_.find(page);
    if (found == copies_.end() || !found->second.done) {
      return here;
    }
    try {
      here = await(use_of(page).home, found->second.done, std::move(here));  // 2
    } catch (...) {
      give_up(page);
      throw;
    }
    std::erase(under_way_, page);
    let_go(found->second);
    return here;
  }

  // Free its memory. Whether a stream was made to wait.
  bool release(PageId page, const Held& storage) {
    const auto turn = my_turn();
    Use& use = use_of(page);
    const bool has_waited = !use.arrived && let_finish(use, storage);  // else the allocator was told of them (5)
    free(storage);
    use.streams.clear();
    use.arrived.reset();
    use.read.reset();
    use.is_adopted = false;
    return has_waited;
  }

  // -- up -------------------------------------------------------------------------------------------------------------

  // Start to copy it up, into new memory of its home.
  void start_fetch(PageId page, const Held& storage) {
    const auto turn = my_turn();
    const auto found = copies_.find(page);
    if (found == copies_.end() || found->second.storage) {
      return;
    }
    Copy& copy = found->second;
    try {
      copy.storage = storage;
      copy.is_up = true;
      under_way_.push_back(page);
      Use& use = use_of(page);
      const Mark allocated = allocate(use, storage, copy.nbytes);
      copy_up(copy, storage);
      Tampering::fail();
      copy.read = came(use);
      note_copy(Asked::Kind::up, {allocated}, copy.read, copy.nbytes, page);
    } catch (...) {
      undo_fetch(page, copy);
      throw;
    }
  }

  // Its home waits for it. `here` as for `finish_evict`.
  Mark finish_fetch(PageId page, Mark here = {}) {
    const auto turn = my_turn();
    const auto found = copies_.find(page);
    try {
      here = arrive(use_of(page), std::move(here));
    } catch (...) {
      if (found != copies_.end() && found->second.storage) {
        undo_fetch(page, found->second);
      }
      throw;
    }
    std::erase(under_way_, page);
    if (found != copies_.end()) {
      let_go(found->second);
    }
    return here;
  }

  // A copy from elsewhere comes into this new memory.
  void allocate(PageId page, const Held& storage, int64_t nbytes) {
    const auto turn = my_turn();
    allocate(use_of(page), storage, nbytes);
  }

  // All of such a copy has been asked for.
  Mark came(PageId page) {
    const auto turn = my_turn();
    return came(use_of(page));
  }

  // -- recomputed -----------------------------------------------------------------------------------------------------

  // It is recomputed on its home, which is the current stream from now on. Which was that.
  StreamId begin_recompute(PageId page) {
    const auto turn = my_turn();
    const StreamId before = current_stream();
    const StreamId home = use_of(page).home;
    catch_up(home);
    go_to(home);
    return before;
  }

  // It was, or could not be. `inputs`: what it is recomputed from. `before`: the current stream again. Now, on that.
  Mark end_recompute(PageId page, const std::vector<PageId>& inputs, StreamId before, bool is_done) {
    const auto turn = my_turn();
    go_to(before);
    const StreamId home = use_of(page).home;
    const Mark done = record(stream(home));
    for (const PageId input : inputs) {
      was_read(use_of(input), home, done);  // 6
    }
    if (is_done) {
      Use& use = use_of(page);
      use.streams.assign(1, home);
      use.arrived = done;
    }
    return home == before ? done : record(stream(before));
  }

  // -- the rest -------------------------------------------------------------------------------------------------------

  bool has(PageId page) {
    const auto turn = my_turn();
    return copies_.count(page) != 0;
  }

  void discard_copy(PageId page) {
    const auto turn = my_turn();
    discard(page);
  }

  // The same, and maybe the page is gone, too. Whoever has the next turn does it.
  void discard_later(PageId page, bool is_gone) {
    std::lock_guard<std::mutex> held(later_lock_);
    later_.emplace_back(page, is_gone);
  }

  void forget(PageId page) {
    const auto turn = my_turn();
    discard(page);
    uses_.erase(page);
  }

  // Pages whose copies have ended. Those in one direction end in their order.
  std::vector<PageId> landed() {
    const auto turn = my_turn();
    std::vector<PageId> pages;
    std::array<bool, 2> is_pending = {false, false};
    for (const PageId page : under_way_) {
      const Copy& copy = copies_[page];
      bool& is_behind = is_pending[copy.is_up];
      const Mark& end = copy.is_up ? copy.read : copy.done;
      is_behind = is_behind || (end && !end->is_past());
      if (!is_behind) {
        pages.push_back(page);
      }
    }
    return pages;
  }

  size_t made() {
    const auto turn = my_turn();
    return asked_.size();
  }

  // Copies that have ended, by a clock that was at `near_s` at the moment `near`. Those in one direction end in their order.
  std::vector<Copied> take_copied(const Moment& near, double near_s) {
    const auto turn = my_turn();
    std::vector<Copied> copied;
    std::vector<Asked> pending;
    double stalled_s = 0;
    std::array<bool, 3> are_behind = {};
    for (const Asked& asked : asked_) {
      bool& is_behind = are_behind[static_cast<size_t>(asked.kind)];
      is_behind = is_behind || !asked.ended->is_past();
      if (is_behind) {
        pending.push_back(asked);
        continue;
      }
      if (asked.kind == Asked::Kind::stall) {
        stalled_s += std::max(0.0, asked.ended->seconds_since(*asked.after.front()));
        continue;
      }
      const bool is_up = asked.kind == Asked::Kind::up;
      const double ended_s = near_s + asked.ended->seconds_since(near);
      double began_s = std::exchange(last_ended_s_[is_up], ended_s);
      for (const Mark& mark : asked.after) {
        began_s = std::max(began_s, near_s + mark->seconds_since(near));
      }
      copied.push_back({is_up, std::min(began_s, ended_s), ended_s, asked.nbytes, asked.page});
    }
    asked_ = std::move(pending);
    stalled_s_ += stalled_s;
    return copied;
  }

  // Seconds for which the program's streams waited for copies, since this was last asked; as far as `take_copied` saw.
  double take_stalled_s() {
    const auto turn = my_turn();
    return std::exchange(stalled_s_, 0);
  }

  // What Python copies on the streams of copies begins and ends with such.
  Mark record(StreamId id) {
    const auto turn = my_turn();
    const Mark now = record(stream(id));
    if (id == out_.id()) {
      pythons_[false] = now;
    }
    if (id == in_.id()) {
      pythons_[true] = now;
    }
    return now;
  }

  void hold_up(StreamId id, const Moment& moment) const {
    moment.hold_up(stream(id));
  }

  // Storages that copies no longer hold; to let go of the last reference may need the GIL, and is nobody's turn.
  std::vector<Held> take_let_go() {
    const auto turn = my_turn();
    return std::exchange(let_go_, {});
  }

  // All copies have ended: from now on nothing is known of any page.
  void close() {
    const auto turn = my_turn();
    for (auto& [page, copy] : copies_) {
      let_go(copy);
    }
    copies_.clear();
    under_way_.clear();
    uses_.clear();
    retired_.clear();
    marks_.clear();
    pythons_ = {};
    addresses_.clear();
    extents_ = Extents();
  }

 private:
  static constexpr int64_t grain = 4096;  // also keeps every page's copy aligned for the device's copy engines
  static constexpr size_t most_marks = 256;  // of a stream; older uses have most likely ended

  struct Copy {
    int64_t offset = 0;
    int64_t length = 0;
    int64_t nbytes = 0;
    Mark done;     // past when the copy down is complete
    Mark read;     // past when the last copy up is
    Held storage;  // held while it is under way
    bool is_up = false;
  };

  struct Use {
    StreamId home = 0;
    c10::SmallVector<StreamId, 2> streams;
    Mark arrived = {};  // past when the last fetch is complete; none if its memory is not of ours
    Mark read = {};     // past when the last recomputation that read it is; none if there was none since it came
    bool is_adopted = false;

    bool is_known_to(StreamId stream) const {
      return std::find(streams.begin(), streams.end(), stream) != streams.end();
    }
  };

  // Memory whose page is gone, while copies still read or write it.
  struct Retired {
    std::vector<Mark> copies;
    int64_t offset;
    int64_t length;
  };

  std::unique_lock<std::mutex> my_turn() {
    std::unique_lock<std::mutex> turn(turn_);
    std::vector<std::pair<PageId, bool>> until_now;
    {
      std::lock_guard<std::mutex> held(later_lock_);
      until_now.swap(later_);
    }
    for (const auto& [page, is_gone] : until_now) {
      discard(page);
      if (is_gone) {
        uses_.erase(page);
      }
    }
    return turn;
  }

  c10::Stream stream(StreamId id) const {
    return c10::Stream(c10::Stream::UNSAFE, device_, id);
  }

  StreamId current_stream() const {
    return c10::impl::getDeviceGuardImpl(device_.type())->getStream(device_).id();
  }

  static Mark record(const c10::Stream& stream) {
    return std::make_shared<Moment>(stream);
  }

  static void wait_for(const c10::Stream& stream) {
    record(stream)->wait();
  }

  Use& use_of(PageId page) {
    const auto found = uses_.find(page);
    if (found != uses_.end()) {
      return found->second;
    }
    const StreamId current = current_stream();
    return uses_[page] = Use{current, {current}};
  }

  void go_to(StreamId id) const {
    const c10::impl::VirtualGuardImpl guard(device_.type());
    guard.exchangeStream(stream(id));
  }

  // By a recomputation on `reader`, until `done`.
  void was_read(Use& use, StreamId reader, const Mark& done) const {
    use.read = done;
    if (use.home != reader) {
      done->hold_up(stream(use.home));
    }
    for (const StreamId id : use.streams) {
      if (id != reader && id != use.home) {
        done->hold_up(stream(id));
      }
    }
  }

  // The copy down waits until the page has come, and was used for the last time (1): for these moments.
  c10::SmallVector<Mark, 2> await_uses(const Use& use, int64_t last_use) {
    c10::SmallVector<Mark, 2> moments;
    if (use.arrived) {
      moments.push_back(use.arrived);
    }
    for (const StreamId id : use.streams) {
      const auto& marks = marks_[id];
      const auto first = std::upper_bound(marks.begin(), marks.end(), last_use, [](int64_t tick, const auto& mark) {
        return tick < mark.first;
      });
      moments.push_back(first == marks.end() ? record(stream(id)) : first->second);
    }
    for (const Mark& moment : moments) {
      moment->hold_up(out_);
    }
    return moments;
  }

  // That it has ended says `ended`; it waited for the moments of `after`.
  void note_copy(Asked::Kind kind, c10::SmallVector<Mark, 2> after, const Mark& ended, int64_t nbytes, PageId page) {
    if (const Mark pythons = std::exchange(pythons_[kind == Asked::Kind::up], {})) {
      after.push_back(pythons);
    }
    asked_.push_back({kind, std::move(after), ended, nbytes, page});
  }

  // A stream waits for a copy. If that is the program's, the time counts that it stands still. `here`: as for
  // `finish_evict`.
  Mark await(StreamId id, const Mark& copied, Mark here) {
    if (copied->is_past()) {
      return here;
    }
    if (id != current_stream()) {
      copied->hold_up(stream(id));
      return here;
    }
    const Mark began = here ? here : record(stream(id));
    copied->hold_up(stream(id));
    const Mark ended = record(stream(id));
    asked_.push_back({Asked::Kind::stall, {began}, ended, 0, no_page});
    return ended;
  }

  // There is no copy to wait for, or other streams have read the page since that was made (2). Whether its home waits.
  bool let_finish(const Use& use, const Held& storage) {
    if (use.is_adopted) {
      keep_for(storage, out_);
      for (const StreamId id : use.streams) {
        keep_for(storage, stream(id));
      }
      return false;
    }
    bool has_waited = false;
    for (const StreamId id : use.streams) {
      if (id != use.home) {
        record(stream(id))->hold_up(stream(use.home));
        has_waited = true;
      }
    }
    return has_waited;
  }

  // `home` is about to be given memory that the current stream may still use (3).
  void catch_up(StreamId home) const {
    const StreamId current = current_stream();
    if (current != home) {
      record(stream(current))->hold_up(stream(home));
    }
  }

  // Since when the copy up may write there.
  Mark allocate(const Use& use, const Held& storage, int64_t nbytes) const {
    catch_up(use.home);
    {
      const c10::StreamGuard on_home(stream(use.home));
      c10::Allocator* allocator = storage->allocator();
      allocator = allocator == nullptr ? c10::GetAllocator(device_.type()) : allocator;
      storage->set_data_ptr_noswap(allocator->allocate(static_cast<size_t>(nbytes)));
      storage->set_nbytes(static_cast<size_t>(nbytes));
    }
    const Mark allocated = record(stream(use.home));
    allocated->hold_up(in_);  // 3
    return allocated;
  }

  Mark came(Use& use) const {
    use.streams.clear();
    use.arrived = record(in_);
    return use.arrived;
  }

  Mark arrive(Use& use, Mark here) {
    if (use.arrived && !use.is_known_to(use.home)) {
      here = await(use.home, use.arrived, std::move(here));  // 4
      use.streams.push_back(use.home);
    }
    return here;
  }

  void free(const Held& storage) const {
    storage->set_data_ptr_noswap(c10::DataPtr(nullptr, device_));
    storage->set_nbytes(0);
  }

  // An eviction failed: no copy is under way any more.
  void give_up(PageId page) {
    wait_for(out_);
    discard(page);
  }

  void undo_fetch(PageId page, Copy& copy) {
    wait_for(in_);
    free(copy.storage);
    std::erase(under_way_, page);
    let_go(copy);
  }

  void discard(PageId page) {
    const auto found = copies_.find(page);
    if (found == copies_.end()) {
      return;
    }
    Copy& copy = found->second;
    std::vector<Mark> busy;
    for (const Mark& mark : {copy.done, copy.read}) {
      if (mark && !mark->is_past()) {
        busy.push_back(mark);
      }
    }
    if (busy.empty()) {
      extents_.give(copy.offset, copy.length);
    } else {
      retired_.push_back({std::move(busy), copy.offset, copy.length});  // 7
    }
    std::erase(under_way_, page);
    let_go(copy);
    copies_.erase(found);
  }

  void reuse_retired() {
    while (!retired_.empty()) {
      const Retired& first = retired_.front();
      if (!std::all_of(first.copies.begin(), first.copies.end(), [](const Mark& mark) { return mark->is_past(); })) {
        return;
      }
      extents_.give(first.offset, first.length);
      retired_.pop_front();
    }
  }

  void let_go(Copy& copy) {
    if (copy.storage) {
      let_go_.push_back(std::move(copy.storage));
      copy.storage = Held();
    }
  }

  // -- bytes ----------------------------------------------------------------------------------------------------------

  at::Tensor host_bytes(const Copy& copy) const {
    const auto granted = std::prev(addresses_.upper_bound(copy.offset));
    const uintptr_t address = granted->second + static_cast<uintptr_t>(copy.offset - granted->first);
    return at::from_blob(reinterpret_cast<void*>(address), {copy.nbytes}, at::TensorOptions(at::kByte));
  }

  void copy_down(const Held& storage, const Copy& copy) const {
    const Unseen unseen;
    const c10::StreamGuard on(out_);
    host_bytes(copy).copy_(bytes_of(storage), /*non_blocking=*/true);
  }

  void copy_up(const Copy& copy, const Held& storage) const {
    const Unseen unseen;
    const c10::StreamGuard on(in_);
    bytes_of(storage).copy_(host_bytes(copy), /*non_blocking=*/true);
  }

  // The memory is not handed out again before the stream is through with it.
  void keep_for(const Held& storage, const c10::Stream& stream) const {
    const Unseen unseen;
    bytes_of(storage).record_stream(stream);
  }

  const c10::Device device_;
  c10::Stream out_;
  c10::Stream in_;
  std::mutex turn_;
  std::mutex later_lock_;
  std::vector<std::pair<PageId, bool>> later_;
  std::map<int64_t, uintptr_t> addresses_;  // of host memory, by offset
  Extents extents_;
  std::unordered_map<PageId, Copy> copies_;
  std::unordered_map<PageId, Use> uses_;
  std::unordered_map<StreamId, std::vector<std::pair<int64_t, Mark>>> marks_;  // by stream, in the order of their ticks
  std::vector<PageId> under_way_;
  std::deque<Retired> retired_;
  std::vector<Asked> asked_;
  std::array<Mark, 2> pythons_;  // the latest, down and up, since the latest copy of ours
  std::array<double, 2> last_ended_s_ = {};  // of copies down and up that were taken
  double stalled_s_ = 0;
  std::vector<Held> let_go_;
};

}  // namespace torch_lms
