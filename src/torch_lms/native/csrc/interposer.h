// Sees every operator, as a fallback on a dispatch key below autograd, and runs those that need no decision.
//
// The life of an operation here: its operator is looked up (Python describes one at first sight); its arguments are
// looked up in the table of pages; if nothing has to move, it runs, and what it made is entered in the table. Nothing has
// to move while everything fits (the fast path is open), or between two moves of a plan, or of an outlook (it is
// followed). In all other cases Python's dispatch mode has it, from its beginning, as if it had come there by itself.

#pragma once

#include "following.h"
#include "undo.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/flat_hash_map.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <set>
#include <unordered_map>
#include <vector>

namespace torch_lms {

// How an operator passes. Python says which (`capture/passage.py`).
enum class Passage : int8_t {
  inner = 0,   // made of others, which come here one by one: nothing to do
  view = 1,    // touches no byte
  plain = 2,   // reads and writes its arguments, and makes results: the table knows all that matters
  python = 3,  // whatever needs a closer look
};

struct Operator {
  Passage passage;
  int name;
  std::vector<size_t> writes;  // positions of the arguments that it writes
  bool is_empty;               // its result is memory as it came, and C++ may fill it unseen
  bool is_seeded;              // it draws random numbers
  bool takes_lists;            // of tensors, and treats each index by itself
  bool searches;               // it chooses an algorithm by the memory that it finds free
  bool is_repeatable;          // called again with the same, it gives the same bits
  bool numbers_matter;         // the sizes of its results may depend on numbers among its arguments
  bool grows;                  // these may be far larger than sizes and numbers among its arguments tell

  bool can_begin_anew() const {  // after memory ran out, it gives what it would have given at first
    return writes.empty() && !is_seeded;
  }
};

// What became of an operation that follows the plan, and for which pages had to move. As `runtime/native_interposer.py`
// has it.
enum class Prepared : int8_t {
  no = 0,        // nothing: Python has to run it
  followed = 1,  // they are there, and the plan is followed from this operation on
  begun = 2,     // they are there, and pinned until Python hears that it `ended`
};

// What the owner of the pages, in Python, does for us. Called with the GIL, and without our lock.
class Owner {
 public:
  virtual ~Owner() = default;
  virtual Operator describe(const c10::OperatorHandle& op) = 0;
  // Runs an operation, on pages that may have to be brought back first.
  virtual void run(const c10::OperatorHandle& op, torch::jit::Stack* stack) = 0;
  // Does `what`, during which an operation's tensors dispatch by themselves, and are used unseen.
  virtual void hold(const c10::OperatorHandle& op, const torch::jit::Stack& stack, const std::function<void()>& what) = 0;
  // The plan's operation at `position` begins, on these pages: has them there, and room for what it creates.
  virtual Prepared prepare(int position, const std::vector<PageId>& pages, const std::vector<PageId>& writes) = 0;
  // Whoever waits for another thread here, which may need the GIL, has it not.
  virtual void without_gil(const std::function<void()>& what) = 0;
  virtual void ended(const std::vector<PageId>& pages, const std::vector<PageId>& written) = 0;
  // A storage was made that the table cannot take as it is: on a device that is new, or while births are kept.
  virtual void born(const at::Tensor& tensor) = 0;
  // Storages were made as a plan has them. They are given their Python objects, as Python would have given them: PyTorch
  // counts these as references when it chooses whether to accumulate in place, and the plan's operations depend on that.
  virtual void give_python_objects(const std::vector<at::Tensor>& tensors) = 0;
  // The device has no longer as much room again: from now on pages may move.
  virtual void room_is_short() = 0;
  // The program gave storages of these pages another size.
  virtual void resized(const std::vector<PageId>& pages) = 0;
  // An operation ended during which somebody closed the fast path, and pinned its pages.
  virtual void ended_pinned(bool wrote) = 0;
  virtual bool is_out_of_memory() = 0;  // the C++ exception that is being handled
};

// The operation that a thread is running, for whoever closes the fast path on another.
struct Running {
  uint64_t thread = 0;
  bool is_busy = false;
  bool is_pinned = false;
  std::vector<PageId> pages;
  int64_t promised = 0;  // bytes that it is about to create, as far as is known
  // While a plan is followed:
  uint64_t epoch = 0;         // since when it is; 0 if the operation does not follow it
  int position = -1;          // of the operation in the plan; -1 if it has none so far
  bool is_prepared = false;   // Python has moved pages for it
  bool must_end = false;      // and hears of its end
  bool is_captured = false;   // it may have to be repeated
  std::shared_ptr<Call> call;  // it, recorded
  bool is_expected = false;   // the plan's next operation is like this one, if it creates a page
  size_t journal_size = 0;    // before it
  std::optional<PlannedOp> unplanned;  // without a plan: what it is
  std::shared_ptr<Lanes> lanes;  // have to note when it begins
  int64_t tick = 0;           // of the operation before it
  std::vector<PageId> wrote;  // pages that it may write
  std::vector<Page*> found;   // among its arguments, while it is looked up
  // While no plan is followed:
  bool is_asked = false;     // it has to be known what it creates
  size_t signature = 0;      // by which that is known

  // Whether it has pages, or is about to.
  bool is_touching() const {
    return is_busy && (!pages.empty() || promised > 0);
  }
};

// One that is running: its thread, its pages, and the bytes that it is about to create.
using OnIt = std::tuple<uint64_t, std::vector<PageId>, int64_t>;

enum class Entrance { passes, to_prepare, python, on_meta };  // where there are no bytes, and sizes may be symbols

struct Settings {
  c10::DeviceType device_type = c10::DeviceType::CPU;
  int64_t min_size = 1;
  int64_t filled_unseen = 0;  // empty results below so many bytes may be filled unseen
  int64_t read_unseen = 0;    // integers on the CPU below so many bytes may be read unseen
  int64_t read_unseen_wide = 0;  // the same for those of 32 and 64 bits
  bool has_streams = false;
  int64_t large = 1;  // pages of so large a part of the limit may make an operation exceed it by itself
  int64_t runs = 1;  // an operator that takes lists is split if it needs more than the limit by so many
};

// Of the fast path, for a device by its index: the limit, and the bytes of pages up to which it stays open.
using Opening = std::tuple<int, int64_t, int64_t>;

class Interposer {
 public:
  // Registers the fallback, for as long as the process lives. Throws if the key is taken.
  void claim(const std::string& key);

  void start(Settings settings, std::shared_ptr<Owner> owner);
  void stop();

  // On the calling thread: whether its operations come here, and whether they do not for the moment. Return what was.
  bool include(bool is_included);
  bool exclude(bool is_excluded);

  void open(const std::vector<Opening>& openings);
  // The operations that run now.
  std::vector<OnIt> close();

  // Python takes over from `following`. For whoever holds the lock.
  std::pair<Passed, std::vector<OnIt>> take_over();
  int name(const std::string& name);  // a number for it
  const std::string& name(int number) const {
    return *by_number_[static_cast<size_t>(number)];
  }

  // What moves before the plan's operation at `position`, on the pages of these numbers, some of which it may write: the
  // operation has begun then, and Python performs the moves. None if it has to decide. For whoever holds the lock.
  std::optional<std::vector<Move>> move(
      int position,
      const std::vector<PageId>& used,
      const std::vector<PageId>& written,
      const std::vector<PageId>& landed);

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

  // Other results are pages now. For whoever holds the lock.
  void set_min_size(int64_t nbytes) {
    settings.min_size = nbytes;
    created_.clear();
  }

  // Until no thread moves pages without Python.
  void wait_for_carrier() {
    std::unique_lock<std::mutex> held(lock);
    carried_.wait(held, [&] { return !is_carrying; });
  }

  // The page of a tensor, if that looks at one; else `no_page`. For whoever holds the lock.
  PageId page_of(const at::Tensor& tensor) const {
    const Page* page = pages.find(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
    return page == nullptr ? no_page : page->id;
  }

  // What a call is given: the page of each tensor among its arguments, what it does to these, the bytes of those that are
  // none, and whether each is its storage, sizes, strides, offset and type, and nothing else.
  struct Given {
    std::vector<PageId> pages;
    std::map<PageId, Call::Read> reads;
    size_t small_bytes = 0;
    bool are_bare = true;
  };

  // For whoever holds the lock. `writes`: positions of the arguments that it writes.
  template <typename Values>
  Given given(const Values& arguments, const std::vector<size_t>& writes) const {
    Given found;
    size_t place = 0;
    for (const auto& value : arguments) {
      const bool is_written = std::find(writes.begin(), writes.end(), place++) != writes.end();
      every_tensor(value, [&](const at::Tensor& tensor) {
        const PageId id = found.pages.emplace_back(page_of(tensor));
        if (id == no_page) {
          found.small_bytes += tensor.storage().nbytes();
        } else {
          Call::Read& read = found.reads[id];
          read = {pages.find(id)->writes, read.is_written || is_written};
        }
        found.are_bare = found.are_bare && !tensor.is_quantized() && !tensor.is_conj() && !tensor.is_neg();
        return true;
      });
    }
    return found;
  }

  std::mutex lock;
  Pages pages;
  Following following{pages};
  Settings settings;
  std::atomic<bool> is_active{false};
  std::atomic<bool> is_open{false};
  std::atomic<bool> is_following{false};
  std::atomic<bool> asks_python{false};  // all leaves go to Python: an interrupt waits, births are kept, or some are in tiles
  bool is_carrying = false;  // pages move for the plan's next operation, without Python and without the lock
  uint64_t entered = 0;
  std::set<uint64_t> asides;  // threads whose operations are no part of the steps
  std::vector<StreamId> streams;  // that Python knows
  bool knows(StreamId stream) const {
    return std::find(streams.begin(), streams.end(), stream) != streams.end();
  }

 private:
  std::shared_ptr<Owner> owner();  // null if the session has just ended
  Running& running();
  const Operator& describe(const c10::OperatorHandle& op);
  bool is_new_search(const Operator& op, const c10::OperatorHandle& handle, const torch::jit::Stack& stack) const;
  void hand_to_modes(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  bool are_dispatching_pages_among(const c10::OperatorHandle& op, const torch::jit::Stack& stack);
  void run_view(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack);
  bool run_view_of_away(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack);
  void run_plain(const Operator& op, const c10::OperatorHandle& handle, c10::DispatchKeySet below, torch::jit::Stack* stack);
  void run_in_python(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack);
  Entrance enter(const Operator& op, const c10::OperatorHandle& handle, const torch::jit::Stack& stack, Running& self);
  // Whether the fast path stays open until pages fill the limit. On an accelerator what is left of it is for workspaces,
  // too, and an operation that finds no memory may have to be undone.
  bool fills_limit() const {
    return !settings.has_streams;
  }
  int64_t limit_for(const std::vector<Page*>& used);
  bool may_be_large(const std::vector<Page*>& used);
  const int64_t* ask(
      const Operator& op, const c10::OperatorHandle& handle, const torch::jit::Stack& stack, Running& self);
  bool has_room(Running& self, int64_t new_bytes);
  void learn(size_t signature, int64_t nbytes);
  bool creates_no_more(
      const Operator& op, const c10::OperatorHandle& handle, const torch::jit::Stack& stack, Running& self);
  void note_begin(Running& self);
  bool expect(const Operator& op, const c10::OperatorHandle& handle, const torch::jit::Stack& stack, Running& self);
  std::optional<int64_t> made_by(
      const c10::OperatorHandle& handle, const torch::jit::Stack& stack, const std::vector<PageId>& used) const;
  bool note_writes(const Operator& op, const c10::OperatorHandle& handle, const torch::jit::Stack& stack, Running& self);
  Entrance prepare(Running& self);
  bool carry(Running& self);
  bool note_program(Carried& carried, const Page& page) const;
  static std::optional<StreamId> home_of(const Page& page);
  std::optional<std::vector<Page*>> next_on(int position, const std::vector<PageId>& used);
  std::optional<std::vector<Page*>> next_on(const Running& self);
  std::shared_ptr<Call> capture(const Operator& op, const c10::OperatorHandle& handle, const torch::jit::Stack& stack);
  void finish(
      const Operator& op,
      const c10::OperatorHandle& handle,
      const torch::jit::Stack* stack,
      Running& self,
      bool is_run_again);
  Entrance follow(const Operator& op, const c10::OperatorHandle& handle, const torch::jit::Stack& stack, Running& self);
  bool is_born_as_planned(const Running& self, int64_t nbytes, int device);
  std::vector<OnIt> pin_running();
  int64_t running_beside(const Running& self) const;
  int64_t promised_beside(const Running& self) const;
  bool look_up(const at::Tensor& tensor, std::vector<Page*>& found) const;
  bool is_known_to_stream(const Page& page) const;
  StreamId current_stream(int device) const;
  bool may_be_page(const at::Tensor& tensor, const c10::StorageImpl* storage) const;

  c10::DispatchKey key_ = c10::DispatchKey::Undefined;
  c10::DispatchKeySet below_;
  int64_t sessions_ = 0;  // begun so far
  c10::DispatchKeySet above_python_;  // what has had its turn before PyTorch's dispatch modes
  c10::DispatchKeySet above_;  // the same, but for what kernels count on
  std::shared_ptr<Owner> owner_;
  std::condition_variable carried_;
  std::unordered_map<c10::OperatorHandle, Operator> operators_;
  std::unordered_map<std::string, int> names_;
  std::vector<const std::string*> by_number_;  // those
  uint64_t looked_up_ = 0;  // operations, to find each page once
  std::unordered_map<size_t, int64_t> created_;  // the most bytes of pages that operations of a signature created
  std::vector<std::shared_ptr<Running>> runs_;
};

Interposer& interposer();

}  // namespace torch_lms
