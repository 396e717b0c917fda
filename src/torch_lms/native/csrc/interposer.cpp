#include "interposer.h"

#include <ATen/core/List.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/library.h>
#include <torch/version.h>

#include <pthread.h>

#include <limits>
#include <unordered_set>
#include <utility>

namespace torch_lms {

namespace {

// Whether `torch.jit.trace` waits for the part of the convolution at hand (one that `searches`). The part comes here by
// way of its key, and it does not listen meanwhile.
bool is_traced_in_parts() {
  return c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::Tracer) && torch::jit::tracer::isTracing();
}

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  interposer()(op, keys, stack);
}

// Tensors that are no views of one storage each, or that somebody else takes apart.
constexpr c10::DispatchKeySet peculiar_keys({
    c10::DispatchKey::Python,
    c10::DispatchKey::FuncTorchBatched,
    c10::DispatchKey::FuncTorchGradWrapper,
    c10::DispatchKey::Functionalize,
    c10::DispatchKey::ZeroTensor,
});

// Whether `super().__torch_dispatch__` of a subclass closes our key, as it does Python's.
constexpr bool super_closes_key = TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13;

constexpr size_t most_copied = 4096;  // without Python having counted the copies

constexpr double most_bytes_of_element = 8;
constexpr size_t most_signatures = 20'000;  // that are known: a program whose shapes never repeat must not grow

bool is_strided(const at::TensorImpl& tensor) {
  return tensor.has_storage() && tensor.layout() == c10::kStrided && !tensor.is_nested();
}

bool is_peculiar(const at::TensorImpl& tensor) {
  return !is_strided(tensor) || tensor.key_set().has_any(peculiar_keys);
}

// The last `count` values of a stack.
struct Last {
  const torch::jit::Stack& stack;
  size_t count;
  auto begin() const {
    return stack.end() - static_cast<std::ptrdiff_t>(count);
  }
  auto end() const {
    return stack.end();
  }
};

Last arguments_of(const c10::OperatorHandle& handle, const torch::jit::Stack& stack) {
  return {stack, handle.schema().arguments().size()};
}

// Of a call: its operator, the sizes and types of its tensors, and what else its results' sizes depend on.
size_t signature_of(const Operator& op, const c10::OperatorHandle& handle, const torch::jit::Stack& stack) {
  size_t signature = c10::get_hash(&op);
  for (const auto& value : arguments_of(handle, stack)) {
    if (value.isIntList()) {
      signature = c10::get_hash(signature, value.toIntVector());
    } else if (value.isBool()) {
      signature = c10::get_hash(signature, value.toBool());
    } else if (value.isDevice()) {
      signature = c10::get_hash(signature, value.toDevice());
    } else if (value.isBoolList()) {
      for (const bool each : value.toBoolList()) {
        signature = c10::get_hash(signature, each);
      }
    } else if (op.numbers_matter && value.isInt()) {
      signature = c10::get_hash(signature, value.toInt());
    } else if (op.numbers_matter && value.isDouble()) {
      signature = c10::get_hash(signature, value.toDouble());
    } else {
      signature = c10::get_hash(signature, value.isNone());
    }
    every_tensor(value, [&](const at::Tensor& tensor) {
      const bool has_sizes = is_strided(*tensor.unsafeGetTensorImpl());
      signature = c10::get_hash(signature, tensor.scalar_type(), has_sizes ? tensor.dim() : -1);
      if (has_sizes) {
        for (const int64_t size : tensor.sizes()) {
          signature = c10::get_hash(signature, size);
        }
      }
      return true;
    });
  }
  return signature;
}

// As `most_new_bytes` in `capture/sizes.py`.
double most_new_bytes(const Operator& op, const c10::OperatorHandle& handle, const torch::jit::Stack& stack) {
  if (!op.writes.empty()) {
    return 0;
  }
  const at::Tensor* largest = nullptr;
  double listed = 1;
  double in_lists = 0;
  bool has_numbers = false;
  bool has_sizes = false;
  const auto values = arguments_of(handle, stack);
  for (const auto& value : values) {
    if (value.isTensor() && value.toTensor().defined()) {
      const at::Tensor& tensor = value.toTensor();
      largest = largest == nullptr || tensor.numel() > largest->numel() ? &tensor : largest;
    } else if (value.isTensorList()) {
      every_tensor(value, [&](const at::Tensor& tensor) {
        in_lists += static_cast<double>(tensor.numel());
        return true;
      });
    } else if (op.numbers_matter && (value.isInt() || value.isDouble())) {
      has_numbers = true;
    } else if (op.numbers_matter && value.isIntList()) {
      has_sizes = true;
      for (const int64_t number : value.toIntVector()) {
        listed *= static_cast<double>(std::max(int64_t{1}, number));
      }
    }
  }
  if (op.grows || (largest == nullptr && has_numbers && !has_sizes)) {
    return std::numeric_limits<double>::infinity();
  }
  int64_t widest = 1;
  for (const auto& value : values) {
    if (value.isTensor() && value.toTensor().defined() && value.toTensor().sizes() != largest->sizes()) {
      for (const int64_t size : value.toTensor().sizes()) {
        widest = std::max(widest, size);
      }
    }
  }
  const auto elements = static_cast<double>(largest == nullptr ? 1 : std::max(int64_t{1}, largest->numel()));
  return most_bytes_of_element * std::max(in_lists, elements * static_cast<double>(widest) * listed);
}

int64_t nbytes_of(const std::vector<Page*>& pages) {
  int64_t nbytes = 0;
  for (const Page* page : pages) {
    nbytes += page->nbytes;
  }
  return nbytes;
}

bool are_strided(const c10::OperatorHandle& handle, const torch::jit::Stack& stack) {
  for (const auto& value : arguments_of(handle, stack)) {
    if (!every_tensor(value, [](const at::Tensor& tensor) { return is_strided(*tensor.unsafeGetTensorImpl()); })) {
      return false;
    }
  }
  return true;
}

}  // namespace

Interposer& interposer() {
  static auto* the_one = new Interposer();  // never destroyed: threads may come here while the process ends
  return *the_one;
}

void Interposer::claim(const std::string& key) {
  if (key_ != c10::DispatchKey::Undefined) {
    return;
  }
  const auto wanted = c10::parseDispatchKey(key);
  TORCH_CHECK(
      !c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(wanted), "the dispatch key ", key, " is taken");
  static std::unique_ptr<torch::Library> library;
  library = std::make_unique<torch::Library>(torch::Library::IMPL, "_", wanted, __FILE__, __LINE__);
  library->fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
  below_ = c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, wanted);
  using Keys = c10::DispatchKeySet;
  above_python_ = Keys(Keys::FULL) ^ (Keys(Keys::FULL_AFTER, c10::DispatchKey::Python) | Keys(c10::DispatchKey::Python));
  // Kernels that are made of other operators count on these, where a tensor is to be read as conjugated or negated.
  above_ = above_python_ - Keys({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor});
  key_ = wanted;
  Unseen::keys = (Keys(Keys::FULL) ^ Keys(Keys::FULL_AFTER, c10::DispatchKey::Python)) | Keys(wanted);
  Call::hide_from(above_ | Keys({wanted, c10::DispatchKey::Python}));
  static const int forks = pthread_atfork(
      [] { interposer().lock.lock(); },
      [] { interposer().lock.unlock(); },
      [] {
        interposer().is_carrying = false;  // the thread that did stayed with the parent
        Moment::is_child = true;
        interposer().lock.unlock();
      });
  TORCH_CHECK(forks == 0, "pthread_atfork failed");
}

void Interposer::start(Settings chosen, std::shared_ptr<Owner> owner) {
  std::lock_guard<std::mutex> held(lock);
  settings = chosen;
  owner_ = std::move(owner);
  ++sessions_;
  following.moving.clear();
  pages = Pages();
  entered = 0;
  created_.clear();
  streams.clear();
  asides.clear();
  is_open = false;
  is_following = false;
  asks_python = false;
  is_active = true;
}

void Interposer::stop() {
  std::shared_ptr<Owner> owner;  // may need the GIL to be destroyed, so not before the lock is free
  Pages forgotten;
  std::lock_guard<std::mutex> held(lock);
  is_active = false;
  is_open = false;
  is_following = false;
  owner.swap(owner_);
  std::swap(forgotten, pages);
}

bool Interposer::include(bool is_included) {
  const bool before = c10::impl::tls_is_dispatch_key_included(key_);
  c10::impl::tls_set_dispatch_key_included(key_, is_included);
  return before;
}

bool Interposer::exclude(bool is_excluded) {
  const bool before = c10::impl::tls_is_dispatch_key_excluded(key_);
  c10::impl::tls_set_dispatch_key_excluded(key_, is_excluded);
  return before;
}

void Interposer::open(const std::vector<Opening>& openings) {
  std::lock_guard<std::mutex> held(lock);
  pages.sweep();
  for (const auto& [device, limit, most_unseen] : openings) {
    Account& account = pages.account(device);
    account.is_open = true;
    account.limit = limit;
    account.most_unseen = most_unseen;
    account.peak = account.live;
  }
  is_open = true;
}

std::vector<OnIt> Interposer::close() {
  std::lock_guard<std::mutex> held(lock);
  is_open = false;
  return pin_running();
}

std::pair<Passed, std::vector<OnIt>> Interposer::take_over() {
  is_following = false;
  return {following.end(), pin_running()};
}

std::optional<std::vector<Move>> Interposer::move(
    int position,
    const std::vector<PageId>& used,
    const std::vector<PageId>& written,
    const std::vector<PageId>& landed) {
  const auto found = next_on(position, used);
  auto moves = found ? following.decide(*found, written, landed) : std::nullopt;
  if (moves) {
    following.proceed(*found);
    following.is_moving = true;
  }
  return moves;
}

// The pages of the plan's operation at `position`, if that is the next, and pages may be moved for it.
std::optional<std::vector<Page*>> Interposer::next_on(int position, const std::vector<PageId>& used) {
  const PlannedOp* next = following.next();
  if (!is_following || following.is_moving || following.position() + 1 != position || next == nullptr) {
    return std::nullopt;
  }
  std::vector<Page*> found;
  for (const PageId id : used) {
    Page* page = pages.find(id);
    if (page == nullptr) {
      return std::nullopt;
    }
    found.push_back(page);
  }
  if (following.is_planned() && !following.are(found, next->pages)) {
    return std::nullopt;  // of another plan
  }
  for (const auto& run : runs_) {
    if (run->is_touching()) {
      return std::nullopt;  // whose pages have to stay
    }
  }
  return found;
}

// The same of an operation that has not begun. Meanwhile another may have been expected, on another thread.
std::optional<std::vector<Page*>> Interposer::next_on(const Running& self) {
  if (following.is_planned() == self.unplanned.has_value()) {
    return std::nullopt;
  }
  if (self.unplanned && is_following && !following.is_moving) {
    following.expect(*self.unplanned);
  }
  return next_on(self.position, self.pages);
}

int Interposer::name(const std::string& name) {
  std::lock_guard<std::mutex> held(lock);
  const auto [entry, is_new] = names_.emplace(name, static_cast<int>(names_.size()));
  if (is_new) {
    by_number_.push_back(&entry->first);
  }
  return entry->second;
}

// The operations that run now: whoever has asked pins their pages, and each tells when it ends.
std::vector<OnIt> Interposer::pin_running() {
  std::vector<OnIt> on_it;
  for (const auto& run : runs_) {
    if (run->is_touching()) {
      run->is_pinned = true;
      on_it.emplace_back(run->thread, run->pages, run->promised);
    }
  }
  return on_it;
}

// How many operations run on other threads.
int64_t Interposer::running_beside(const Running& self) const {
  return std::count_if(runs_.begin(), runs_.end(), [&](const auto& run) { return run->is_busy && run.get() != &self; });
}

// Bytes that they are about to create, as far as is known.
int64_t Interposer::promised_beside(const Running& self) const {
  int64_t nbytes = 0;
  for (const auto& run : runs_) {
    nbytes += run->is_busy && run.get() != &self ? run->promised : 0;
  }
  return nbytes;
}

Running& Interposer::running() {
  struct OfThread {
    std::shared_ptr<Running> run = std::make_shared<Running>();
    OfThread() {
      run->thread = static_cast<uint64_t>(pthread_self());  // as Python's threading.get_ident() has it
      auto& all = interposer();
      std::lock_guard<std::mutex> held(all.lock);
      all.runs_.push_back(run);
    }
    ~OfThread() {
      auto& all = interposer();
      std::lock_guard<std::mutex> held(all.lock);
      std::erase(all.runs_, run);
    }
  };
  static thread_local OfThread mine;
  return *mine.run;
}

std::shared_ptr<Owner> Interposer::owner() {
  std::lock_guard<std::mutex> held(lock);
  return owner_;
}

const Operator& Interposer::describe(const c10::OperatorHandle& op) {
  {
    std::lock_guard<std::mutex> held(lock);
    const auto known = operators_.find(op);
    if (known != operators_.end()) {
      return known->second;
    }
  }
  const auto teller = owner();
  if (!teller) {
    static const Operator any{Passage::python};
    return any;
  }
  const Operator described = teller->describe(op);
  std::lock_guard<std::mutex> held(lock);
  return operators_.emplace(op, described).first->second;
}

void Interposer::operator()(
    const c10::OperatorHandle& handle, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto below = keys & below_;
  if (!is_active.load(std::memory_order_relaxed)) {
    handle.redispatchBoxed(below, stack);
    return;
  }
  if (below.has(c10::DispatchKey::Python)) {
    hand_to_modes(handle, stack);
    return;
  }
  const Operator& op = describe(handle);
  const bool is_inner = op.passage == Passage::inner || (op.searches && is_traced_in_parts());
  if (is_inner && are_strided(handle, *stack)) {
    handle.redispatchBoxed(below, stack);
  } else if (asks_python) {
    run_in_python(handle, below, stack);
  } else if (op.passage == Passage::view && are_strided(handle, *stack)) {
    run_view(handle, below, stack);
  } else if (op.passage == Passage::plain && !((is_open || is_following) && is_new_search(op, handle, *stack))) {
    run_plain(op, handle, below, stack);
  } else {
    run_in_python(handle, below, stack);
  }
}

// Whether Python has to make room for a choice of algorithm: the first on this thread for such arguments, as cuDNN has it.
bool Interposer::is_new_search(
    const Operator& op, const c10::OperatorHandle& handle, const torch::jit::Stack& stack) const {
  if (!op.searches || settings.device_type == c10::kCPU) {
    return false;
  }
  thread_local std::unordered_set<size_t> known;
  size_t signature = c10::get_hash(sessions_, &op);
  for (const auto& value : arguments_of(handle, stack)) {
    if (value.isTensor() && value.toTensor().defined() && is_strided(*value.toTensor().unsafeGetTensorImpl())) {
      const at::Tensor& tensor = value.toTensor();
      signature = c10::get_hash(signature, tensor.scalar_type(), tensor.sizes().vec(), tensor.strides().vec());
    } else if (value.isIntList()) {
      signature = c10::get_hash(signature, value.toIntVector());
    }
  }
  if (known.size() >= most_signatures) {
    known.clear();
  }
  return known.insert(signature).second;
}

// Before PyTorch 2.13 Python's key lies below ours, and its kernel closes all that lies above. So modes and subclasses are
// called here, with our key left open: what they hand on comes here again. But what they hand to `super()` does not, which
// closes our key, too: so tensors that dispatch by themselves and have bytes are held meanwhile.
void Interposer::hand_to_modes(const c10::OperatorHandle& handle, torch::jit::Stack* stack) {
  const auto hand = [&] {
    const c10::impl::ExcludeDispatchKeyGuard had_their_turn{above_python_ - c10::DispatchKeySet(key_)};
    (*getPyInterpreter())->dispatch(handle, stack);
  };
  const auto holder = super_closes_key && are_dispatching_pages_among(handle, *stack) ? owner() : nullptr;
  if (holder) {
    holder->hold(handle, *stack, hand);
  } else {
    hand();
  }
}

bool Interposer::are_dispatching_pages_among(const c10::OperatorHandle& handle, const torch::jit::Stack& stack) {
  std::lock_guard<std::mutex> held(lock);
  bool are_any = false;
  for (const auto& value : arguments_of(handle, stack)) {
    every_tensor(value, [&](const at::Tensor& tensor) {
      const auto& impl = *tensor.unsafeGetTensorImpl();
      are_any = are_any ||
          (is_strided(impl) && impl.key_set().has(c10::DispatchKey::Python) &&
           pages.find(impl.unsafe_storage().unsafeGetStorageImpl()) != nullptr);
      return true;
    });
  }
  return are_any;
}

void Interposer::run_view(const c10::OperatorHandle& handle, c10::DispatchKeySet below, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard unseen{c10::DispatchKeySet(key_)};
  if (is_open) {
    handle.redispatchBoxed(below, stack);
    return;
  }
  // PyTorch checks some views against the size of the storage, which is 0 while it is away.
  const auto given = arguments_of(handle, *stack);
  const std::vector<c10::IValue> arguments(given.begin(), given.end());  // not let go of with the lock held
  const auto others = stack->size() - arguments.size();
  if (run_view_of_away(handle, below, stack)) {
    return;
  }
  try {
    handle.redispatchBoxed(below, stack);
    return;
  } catch (const c10::Error&) {
    stack->resize(others);
    stack->insert(stack->end(), arguments.begin(), arguments.end());
  }
  run_in_python(handle, below, stack);
}

// A view of pages that are away, and stay so meanwhile: as long as it takes their storages have their sizes. Whether that
// was possible. Nothing that may call Python is run here, with the lock held.
bool Interposer::run_view_of_away(
    const c10::OperatorHandle& handle, c10::DispatchKeySet below, torch::jit::Stack* stack) {
  std::lock_guard<std::mutex> held(lock);
  if (!is_following || following.is_moving) {
    return false;
  }
  std::vector<const Page*> away;
  for (const auto& value : arguments_of(handle, *stack)) {
    const bool is_plain = every_tensor(value, [&](const at::Tensor& tensor) {
      const auto& impl = *tensor.unsafeGetTensorImpl();
      if (is_peculiar(impl)) {
        return false;
      }
      const Page* page = pages.find(impl.unsafe_storage().unsafeGetStorageImpl());
      if (page != nullptr && (page->state == State::evicted || page->state == State::dropped)) {
        away.push_back(page);
      }
      return true;
    });
    if (!is_plain) {
      return false;
    }
  }
  if (away.empty()) {
    return false;
  }
  struct Sized {
    const std::vector<const Page*>& pages;
    explicit Sized(const std::vector<const Page*>& away) : pages(away) {
      for (const Page* page : pages) {
        page->storage->set_nbytes(static_cast<size_t>(page->nbytes));
      }
    }
    ~Sized() {
      for (const Page* page : pages) {
        page->storage->set_nbytes(size_t{0});
      }
    }
  };
  const Sized sized(away);
  handle.redispatchBoxed(below, stack);
  return true;
}

void Interposer::run_plain(
    const Operator& op, const c10::OperatorHandle& handle, c10::DispatchKeySet below, torch::jit::Stack* stack) {
  Running& self = running();
  Entrance entrance = enter(op, handle, *stack, self);
  if (entrance == Entrance::on_meta) {
    const c10::impl::ExcludeDispatchKeyGuard unseen{c10::DispatchKeySet(key_)};
    handle.redispatchBoxed(below, stack);
    return;
  }
  if (entrance == Entrance::to_prepare) {
    entrance = prepare(self);
  }
  if (entrance == Entrance::python) {
    const bool is_to_learn = self.is_asked;
    const size_t signature = self.signature;
    const std::vector<PageId> used = is_to_learn ? self.pages : std::vector<PageId>();
    run_in_python(handle, below, stack);
    if (is_to_learn) {
      std::lock_guard<std::mutex> held(lock);
      if (const auto made = made_by(handle, *stack, used)) {
        learn(signature, *made);
      }
    }
    return;
  }
  if (self.lanes) {
    note_begin(self);
  }
  const auto given = arguments_of(handle, *stack);
  const auto others = stack->size() - given.count;
  std::vector<c10::IValue> arguments;
  std::optional<Undo> undo;  // where it is needed: room is short only while a plan is followed, or at the brim
  bool can_begin_anew = op.can_begin_anew();
  const bool follows = self.epoch != 0 || self.must_end;
  const bool is_needed = self.is_asked || (follows && (self.position >= 0 || self.is_expected || op.is_seeded));
  if (!can_begin_anew && is_needed) {
    undo.emplace(settings.device_type, below_);
    can_begin_anew = self.wrote.empty() && undo->note(op.writes, op.is_seeded, given);
  }
  if (can_begin_anew) {  // kernels move from the stack
    arguments.assign(given.begin(), given.end());
  }
  bool has_room = true;
  try {
    if (self.is_captured && op.is_repeatable) {
      self.call = capture(op, handle, *stack);
    }
    const c10::impl::ExcludeDispatchKeyGuard unseen{c10::DispatchKeySet(key_)};
    handle.redispatchBoxed(below, stack);
  } catch (...) {
    const auto knower = owner();
    has_room = !can_begin_anew || !knower || !knower->is_out_of_memory();
    finish(op, handle, nullptr, self, !has_room);
    if (has_room) {
      throw;
    }
  }
  if (has_room) {
    arguments.clear();
    finish(op, handle, stack, self, false);
    return;
  }
  if (undo) {
    undo->perform();
  }
  stack->resize(others);
  stack->insert(
      stack->end(), std::make_move_iterator(arguments.begin()), std::make_move_iterator(arguments.end()));
  arguments.clear();
  run_in_python(handle, below, stack);
}

// The session's code in Python has it. What it calls does not come back here, nor to what has had its turn above.
void Interposer::run_in_python(const c10::OperatorHandle& handle, c10::DispatchKeySet below, torch::jit::Stack* stack) {
  const auto runner = owner();
  if (!runner) {
    handle.redispatchBoxed(below, stack);
    return;
  }
  const c10::impl::ExcludeDispatchKeyGuard had_their_turn{above_ | c10::DispatchKeySet(key_)};
  runner->run(handle, stack);
}

// The call, recorded; null if it cannot be repeated. See `can_be_repeated` in `capture/call.py`.
std::shared_ptr<Call> Interposer::capture(
    const Operator& op, const c10::OperatorHandle& handle, const torch::jit::Stack& stack) {
  const auto arguments = arguments_of(handle, stack);
  std::unique_lock<std::mutex> held(lock);
  auto its = given(arguments, op.writes);
  held.unlock();
  if (!its.are_bare || its.small_bytes > most_small_bytes) {
    return nullptr;
  }
  return std::make_shared<Call>(handle, arguments, std::move(its.pages), std::move(its.reads));
}

// The operation begins, if all that it touches is known and nothing has to move.
Entrance Interposer::enter(
    const Operator& op, const c10::OperatorHandle& handle, const torch::jit::Stack& stack, Running& self) {
  std::lock_guard<std::mutex> held(lock);
  self.is_asked = false;
  if (self.is_busy) {
    return Entrance::python;
  }
  self.found.clear();
  ++looked_up_;
  bool is_on_meta = false;
  for (const auto& value : arguments_of(handle, stack)) {
    is_on_meta = is_on_meta || (value.isDevice() && value.toDevice().is_meta());
    const bool is_known = !value.isStorage() && !value.isObject() && every_tensor(value, [&](const at::Tensor& tensor) {
      is_on_meta = is_on_meta || tensor.is_meta();
      return look_up(tensor, self.found);
    });
    if (!is_known) {
      return Entrance::python;
    }
  }
  if (is_on_meta) {
    return Entrance::on_meta;
  }
  self.pages.clear();
  for (const Page* page : self.found) {
    self.pages.push_back(page->id);
  }
  self.epoch = 0;
  self.promised = 0;
  self.is_prepared = self.must_end = self.is_expected = self.is_captured = false;
  self.lanes = nullptr;
  self.unplanned = std::nullopt;
  Entrance entrance = Entrance::passes;
  if (is_following) {
    entrance = asides.contains(self.thread) ? Entrance::python : follow(op, handle, stack, self);
  } else if (!is_open) {  // Python has it, and it is learned what it creates
    ask(op, handle, stack, self);
    return Entrance::python;
  } else if (!fills_limit()) {
    entrance = may_be_large(self.found) ? Entrance::python : Entrance::passes;
  } else if (
      may_be_large(self.found) || pages.is_at_brim(running_beside(self)) ||
      pages.may_exceed(most_new_bytes(op, handle, stack))) {
    const int64_t* known = ask(op, handle, stack, self);
    note_writes(op, handle, stack, self);
    entrance = known != nullptr && has_room(self, *known) ? Entrance::passes : Entrance::python;
  }
  if (entrance != Entrance::python) {
    entered += !self.pages.empty();
  }
  self.is_busy = entrance == Entrance::passes;
  self.is_pinned = false;
  return entrance;
}

// That of an operation on these pages; no limit, if there are none.
int64_t Interposer::limit_for(const std::vector<Page*>& used) {
  return used.empty() ? std::numeric_limits<int64_t>::max() : pages.account(used.front()->device).limit;
}

// Whether an operation on these pages may need more than the limit by itself.
bool Interposer::may_be_large(const std::vector<Page*>& used) {
  return nbytes_of(used) * settings.large >= limit_for(used);
}

// The bytes that operations like this one have created; null if there was none. What it creates will be learned.
const int64_t* Interposer::ask(
    const Operator& op, const c10::OperatorHandle& handle, const torch::jit::Stack& stack, Running& self) {
  self.is_asked = true;
  self.signature = signature_of(op, handle, stack);
  const auto known = created_.find(self.signature);
  return known == created_.end() ? nullptr : &known->second;
}

// Whether what the operation creates fits: by itself, and beside all that is there.
bool Interposer::has_room(Running& self, int64_t new_bytes) {
  self.promised = new_bytes;
  return nbytes_of(self.found) + self.promised <= limit_for(self.found) &&
      pages.has_room(self.promised + promised_beside(self));
}

// The bytes of pages that an operation made: those on the `stack` that it did not use. Nothing, if a result is in tiles
// (the operation would need more than there is), or if it is a fake one: the next call's may not be.
std::optional<int64_t> Interposer::made_by(
    const c10::OperatorHandle& handle, const torch::jit::Stack& stack, const std::vector<PageId>& used) const {
  int64_t nbytes = 0;
  bool are_whole = true;
  std::unordered_set<PageId> counted(used.begin(), used.end());
  for (const auto& value : Last{stack, handle.schema().returns().size()}) {
    every_tensor(value, [&](const at::Tensor& tensor) {
      const auto& impl = *tensor.unsafeGetTensorImpl();
      if (!is_strided(impl)) {
        return true;
      }
      const auto* storage = impl.unsafe_storage().unsafeGetStorageImpl();
      const Page* page = pages.find(storage);
      nbytes += page != nullptr && counted.insert(page->id).second ? page->nbytes : 0;
      const bool is_fake = impl.is_meta() || is_peculiar(impl);
      are_whole = are_whole && !is_fake && (page != nullptr || impl.numel() == 0 || storage->nbytes() > 0);
      return true;
    });
  }
  return are_whole ? std::make_optional(nbytes) : std::nullopt;
}

// Operations of this signature create so much. What has grown, as what a mask selects, may grow as much again.
void Interposer::learn(size_t signature, int64_t nbytes) {
  if (created_.size() >= most_signatures) {
    created_.clear();
  }
  int64_t& most = created_.try_emplace(signature, nbytes).first->second;
  if (nbytes > most) {
    most = most == 0 ? nbytes : 2 * nbytes - most;
  }
}

// Move pages for the operation, which is the plan's next, or have Python do so.
Entrance Interposer::prepare(Running& self) {
  const auto mover = owner();
  bool is_carried = false;
  if (mover) {
    mover->without_gil([&] { is_carried = carry(self); });
  }
  if (is_carried) {
    return Entrance::passes;
  }
  const bool is_planned = mover && !self.unplanned;
  const Prepared prepared = is_planned ? mover->prepare(self.position, self.pages, self.wrote) : Prepared::no;
  std::lock_guard<std::mutex> held(lock);
  if (prepared == Prepared::followed) {
    const bool are_there = std::all_of(self.pages.begin(), self.pages.end(), [&](PageId id) {
      const Page* page = pages.find(id);
      return page != nullptr && page->is_usable() && is_known_to_stream(*page);
    });
    if (!is_following || following.position() != self.position || !are_there) {
      return Entrance::python;  // another thread was quicker
    }
    self.epoch = following.epoch();
    self.journal_size = following.journal_size();
  }
  self.is_prepared = true;
  self.must_end = prepared == Prepared::begun;
  self.is_captured = self.is_captured && !self.must_end;
  self.is_busy = prepared != Prepared::no;
  return self.is_busy ? Entrance::passes : Entrance::python;
}

// Move them without Python, and without the GIL. Whether that was possible, so that the operation has begun.
bool Interposer::carry(Running& self) {
  Carrier carrier;
  {
    std::lock_guard<std::mutex> held(lock);
    if (!next_on(self) || !following.may_carry()) {
      return false;
    }
    carrier = following.carrier();
  }
  if (carrier.made() >= most_copied) {
    return false;
  }
  const std::vector<PageId> landed = carrier.landed();
  std::vector<Carried> moves;
  bool is_able = true;
  size_t journal_size = 0;
  int64_t so_far = 0;
  {
    std::lock_guard<std::mutex> held(lock);
    const auto found = next_on(self);
    const auto decided = found ? following.decide(*found, self.wrote, landed) : std::nullopt;
    if (!decided) {
      return false;
    }
    for (const Move& move : *decided) {
      Carried& carried = moves.emplace_back(Carried{move});
      if (const Page* page = pages.find(move.page)) {
        const bool is_used = std::find(self.pages.begin(), self.pages.end(), page->id) != self.pages.end();
        carried = {move, page->nbytes, page->tier, page->alive, is_used, carrier.tick + following.last_use(*page)};
        carried.home = home_of(*page);
        is_able = note_program(carried, *page) && is_able;
      }
    }
    if (!is_able) {
      following.go_back(0, no_page, State::other);
      return false;
    }
    journal_size = following.journal_size();
    so_far = following.ops();
    following.advance(*found);
    following.is_moving = is_carrying = true;
  }
  const Outcome outcome = carrier.perform(moves, so_far);
  {
    std::lock_guard<std::mutex> held(lock);
    following.is_moving = is_carrying = false;
    if (carrier.lanes) {
      following.know_streams(moves, outcome);
    }
    following.exchange_programs(moves, outcome.count);
    if (outcome.is_all) {
      following.has_carried(outcome);
      self.epoch = following.epoch();
      self.journal_size = journal_size;
      self.is_busy = true;
    } else {
      following.take_back(self.position, journal_size);
      following.go_back(outcome.count, outcome.failed, outcome.state);
    }
  }
  carried_.notify_all();
  return outcome.is_all;
}

// How the page is recomputed, if it moves that way. Whether that can be done without Python.
bool Interposer::note_program(Carried& carried, const Page& page) const {
  bool is_able = true;
  if (carried.move.act == Act::drop) {
    std::tie(carried.program, is_able) = following.new_program(page);
  } else if (carried.move.act == Act::recompute) {
    carried.program = page.program;
    is_able = carried.program != nullptr;
  }
  if (is_able && carried.move.act == Act::recompute) {
    for (const Program::Input& input : carried.program->inputs()) {
      const Page* its = pages.find(input.page);
      if (const auto home = its == nullptr ? std::nullopt : home_of(*its)) {
        carried.homes.emplace_back(input.page, *home);
      }
    }
  }
  return is_able;
}

// The stream for which the page's memory was allocated, if Python never heard of it.
std::optional<StreamId> Interposer::home_of(const Page& page) {
  if (page.is_named || page.streams.empty()) {
    return std::nullopt;
  }
  return page.streams.front();
}

// Whether the operation follows the plan, and whether pages have to move for it.
Entrance Interposer::follow(
    const Operator& op, const c10::OperatorHandle& handle, const torch::jit::Stack& stack, Running& self) {
  if (following.is_moving || !(following.is_planned() || expect(op, handle, stack, self))) {
    return Entrance::python;  // where it waits for the moves
  }
  const bool is_planned = following.is_planned();
  is_planned ? following.bury_expected() : following.bury_dead();
  const PlannedOp* next = following.next();
  const bool is_next = is_planned
      ? next != nullptr && next->name == op.name && following.are(self.found, next->pages)
      : !self.found.empty() || next->new_bytes > 0;
  if (!is_next && !self.found.empty()) {
    return Entrance::python;
  }
  bool moves = false;
  for (const Page* page : self.found) {
    moves = moves || !page->is_usable();
  }
  moves = note_writes(op, handle, stack, self) || moves;
  if (is_next) {
    if (next->is_python || following.is_large(*next, self.found, op.takes_lists ? settings.runs : 1)) {
      return Entrance::python;
    }
    self.is_captured = next->is_captured;
    self.promised = next->new_bytes;
    moves = moves || next->moves || !following.has_room(*next, promised_beside(self));
  }
  if (is_planned && !creates_no_more(op, handle, stack, self)) {
    return Entrance::python;
  }
  if ((moves || self.is_captured) && self.found.empty() && is_planned) {
    return Entrance::python;  // nobody knows whether it creates anything
  }
  if (moves) {
    self.position = following.position() + 1;
    return Entrance::to_prepare;
  }
  self.epoch = following.epoch();
  self.position = -1;
  // Only an operation that creates a page has a position, if it uses none.
  self.is_expected = is_planned && is_next && self.found.empty();
  self.journal_size = following.journal_size();
  if (is_planned ? !self.found.empty() : is_next) {
    if (!is_planned && running_beside(self) == 0) {
      self.lanes = following.carrier().lanes;
      self.tick = following.carrier().tick + following.ops();
    }
    following.advance(self.found);
    self.position = following.position();
  }
  return Entrance::passes;
}

// Whether the operation creates no more than it is promised, or than there is room for; what it may create is looked up
// where that could be.
bool Interposer::creates_no_more(
    const Operator& op, const c10::OperatorHandle& handle, const torch::jit::Stack& stack, Running& self) {
  const int64_t beside = promised_beside(self);
  const int64_t most = std::max({self.promised, following.room(beside), settings.min_size - 1});  // no page is smaller
  if (most_new_bytes(op, handle, stack) <= static_cast<double>(most)) {
    return true;
  }
  const int64_t* known = ask(op, handle, stack, self);
  if (known == nullptr || *known <= self.promised) {
    return known != nullptr;
  }
  self.promised = *known;
  return following.has_room(self.promised + beside);
}

// Without a plan, on a device with streams: all operations before this one have been asked for, and it begins.
void Interposer::note_begin(Running& self) {
  const auto lanes = std::exchange(self.lanes, nullptr);
  const Mark now = lanes->mark(self.tick);
  std::lock_guard<std::mutex> held(lock);
  if (is_following && self.epoch == following.epoch()) {
    following.begins_at(self.position, now);
  }
}

// Without a plan: the operation is the next. Whether it may pass, and it is known what it creates.
bool Interposer::expect(
    const Operator& op, const c10::OperatorHandle& handle, const torch::jit::Stack& stack, Running& self) {
  const int64_t* known = ask(op, handle, stack, self);
  if (known == nullptr || following.is_outlook_over()) {
    return false;
  }
  bool is_repeatable = op.is_repeatable;
  if (is_repeatable) {
    const auto its = given(arguments_of(handle, stack), op.writes);
    is_repeatable = its.are_bare && its.small_bytes <= most_small_bytes;
  }
  self.unplanned = PlannedOp{
      .name = op.name, .new_bytes = *known, .is_simple = true, .is_repeatable = is_repeatable};
  following.expect(*self.unplanned);
  return true;
}

// The pages that it may write. Whether others are recomputed from them as they are.
bool Interposer::note_writes(
    const Operator& op, const c10::OperatorHandle& handle, const torch::jit::Stack& stack, Running& self) {
  bool are_inputs = false;
  self.wrote.clear();
  const auto given = arguments_of(handle, stack).begin();
  for (const size_t place : op.writes) {
    every_tensor(given[static_cast<std::ptrdiff_t>(place)], [&](const at::Tensor& tensor) {
      const Page* page = pages.find(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
      if (page != nullptr) {
        self.wrote.push_back(page->id);
        are_inputs = are_inputs || page->dependents != 0;
      }
      return true;
    });
  }
  return are_inputs;
}

// An operation that follows the plan creates a page of `nbytes`: whether the plan has it so.
bool Interposer::is_born_as_planned(const Running& self, int64_t nbytes, int device) {
  return is_following && self.epoch == following.epoch() && self.position == following.position() &&
      device == following.device() && following.creates(nbytes);
}

// It ended: what it made is on the `stack`, and is entered in the table. No stack says that it failed, and
// `is_run_again` that it begins anew.
void Interposer::finish(
    const Operator& op,
    const c10::OperatorHandle& handle,
    const torch::jit::Stack* stack,
    Running& self,
    bool is_run_again) {
  std::vector<at::Tensor> for_python;
  std::vector<at::Tensor> planned;
  std::vector<PageId> resized;
  int64_t made_bytes = 0;
  bool is_short = false;
  bool was_pinned = false;
  std::vector<std::unique_ptr<Page>> graveyard;
  const auto call = std::exchange(self.call, nullptr);
  Recorded forgotten;  // without the lock

  const auto note = [&](const at::Tensor& tensor) {
    const auto& impl = *tensor.unsafeGetTensorImpl();
    if (is_peculiar(impl)) {
      for_python.push_back(tensor);
      return true;
    }
    auto* storage = impl.unsafe_storage().unsafeGetStorageImpl();
    if (pages.find(storage) != nullptr || !may_be_page(tensor, storage)) {
      return true;
    }
    if (op.is_empty && static_cast<int64_t>(storage->nbytes()) < settings.filled_unseen) {
      return true;
    }
    const int device = storage->device().index();
    const auto nbytes = static_cast<int64_t>(storage->nbytes());
    made_bytes += nbytes;
    Account& account = pages.account(device);
    const StreamId stream = settings.has_streams ? current_stream(device) : 0;
    const bool is_known = !settings.has_streams || knows(stream);
    if (is_known && is_following && std::exchange(self.is_expected, false) && self.epoch == following.epoch() &&
        self.journal_size == following.journal_size()) {
      following.advance({});
      self.position = following.position();
    }
    if (is_known && is_born_as_planned(self, nbytes, device)) {
      Page* page = pages.add(storage, device, /*is_young=*/false);
      page->is_named = false;
      page->streams.push_back(stream);
      following.created(*page);
      pages.note_peak(device);
      planned.push_back(tensor);
      return true;
    }
    if (!account.is_open || !is_open || !is_known) {
      for_python.push_back(tensor);
      return true;
    }
    pages.add(storage, device, /*is_young=*/true)->streams.push_back(stream);
    pages.note_peak(device);
    const int64_t most = fills_limit() ? account.limit + 1 : account.most_unseen;
    if (account.live >= most) {
      pages.sweep();
    }
    is_short = is_short || account.live >= most || (!fills_limit() && nbytes > account.limit - account.most_unseen);
    account.most_unseen = std::min(account.most_unseen, account.limit - nbytes);  // another may be as large
    return true;
  };

  {
    std::lock_guard<std::mutex> held(lock);
    if (stack != nullptr) {
      for (const auto& value : Last{*stack, handle.schema().returns().size()}) {
        every_tensor(value, note);
      }
    }
    if (self.is_asked && stack != nullptr) {
      learn(self.signature, made_bytes);
    }
    if (call && stack != nullptr && is_following && self.epoch == following.epoch()) {
      call->made(Last{*stack, handle.schema().returns().size()}, [&](const at::Tensor& tensor) { return page_of(tensor); });
      forgotten = following.carrier().calls->keep(self.position, call);
    }
    if (is_following && self.epoch == following.epoch() && self.position >= 0) {
      if (!is_run_again || self.is_prepared || !following.take_back(self.position, self.journal_size)) {
        for (const PageId id : stack != nullptr ? self.wrote : self.pages) {
          following.wrote(id);
        }
        following.ends();
      }
    }
    if (!op.writes.empty()) {
      for (const PageId id : self.pages) {
        const Page* page = pages.find(id);
        if (page != nullptr && !page->is_dead() &&
            static_cast<int64_t>(page->storage->nbytes()) != page->nbytes) {
          resized.push_back(id);
        }
      }
    }
    self.is_busy = false;
    was_pinned = std::exchange(self.is_pinned, false);
    graveyard = pages.take_graveyard();
  }
  const bool has_news = !planned.empty() || was_pinned || !resized.empty() || !for_python.empty() || is_short;
  const auto hearer = has_news || self.must_end ? owner() : nullptr;
  if (!hearer) {
    return;
  }
  if (!planned.empty()) {
    hearer->give_python_objects(planned);
  }
  if (was_pinned) {
    hearer->ended_pinned(!op.writes.empty());
  }
  if (!resized.empty()) {
    hearer->resized(resized);
  }
  for (const auto& tensor : for_python) {
    hearer->born(tensor);
  }
  if (is_short) {
    hearer->room_is_short();
  }
  if (self.must_end) {
    hearer->ended(self.pages, stack != nullptr ? self.wrote : self.pages);
  }
}

// Adds the page of a tensor to `found`, if it is one that is not there. False if it needs a closer look.
bool Interposer::look_up(const at::Tensor& tensor, std::vector<Page*>& found) const {
  const auto& impl = *tensor.unsafeGetTensorImpl();
  if (is_peculiar(impl)) {
    return false;
  }
  auto* storage = impl.unsafe_storage().unsafeGetStorageImpl();
  Page* page = pages.find(storage);
  if (page == nullptr) {
    return !may_be_page(tensor, storage);
  }
  if (page->is_usable() && !is_known_to_stream(*page)) {  // what is away becomes known as it comes back
    return false;
  }
  if (std::exchange(page->seen_by, looked_up_) != looked_up_) {
    found.push_back(page);
  }
  return true;
}

bool Interposer::is_known_to_stream(const Page& page) const {
  return !settings.has_streams || page.may_be_used_on(current_stream(page.device));
}

StreamId Interposer::current_stream(int device) const {
  const auto* guard = c10::impl::getDeviceGuardImpl(settings.device_type);
  return guard->getStream(c10::Device(settings.device_type, static_cast<c10::DeviceIndex>(device))).id();
}

// Whether a storage that is no page should be one. See `runtime/pageable.py`.
bool Interposer::may_be_page(const at::Tensor& tensor, const c10::StorageImpl* storage) const {
  if (storage->device_type() != settings.device_type || storage->sym_nbytes().is_heap_allocated()) {
    return false;
  }
  const auto nbytes = static_cast<int64_t>(storage->nbytes());
  if (nbytes < settings.min_size) {
    return false;
  }
  const auto type = tensor.scalar_type();
  if (settings.device_type != c10::DeviceType::CPU || at::isFloatingType(type) || at::isComplexType(type)) {
    return true;
  }
  const bool is_wide = type == at::kInt || type == at::kLong;
  return nbytes >= (is_wide ? settings.read_unseen_wide : settings.read_unseen);
}

}  // namespace torch_lms
