// What Python calls, and what is called there. Every function here holds the GIL; none waits for it with our lock held.

#include "interposer.h"

#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/Storage.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/utils/tensor_memoryformats.h>

#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <exception>
#include <stdexcept>

namespace py = pybind11;

namespace torch_lms {

namespace {

// What Python's code knows by other types than the dispatcher, which has numbers for them.
py::object to_python(const c10::IValue& value, const c10::Argument& argument) {
  auto type = argument.real_type();
  if (const auto optional = type->cast<c10::OptionalType>()) {
    type = optional->getElementType();
  }
  if (value.isInt()) {
    PyObject* known = nullptr;
    if (type->kind() == c10::TypeKind::ScalarTypeType) {
      known = reinterpret_cast<PyObject*>(torch::getTHPDtype(static_cast<at::ScalarType>(value.toInt())));
    } else if (type->kind() == c10::TypeKind::LayoutType) {
      known = reinterpret_cast<PyObject*>(torch::getTHPLayout(static_cast<at::Layout>(value.toInt())));
    } else if (type->kind() == c10::TypeKind::MemoryFormatType) {
      known = torch::utils::getTHPMemoryFormat(static_cast<at::MemoryFormat>(value.toInt()));
    }
    if (known != nullptr) {
      return py::reinterpret_borrow<py::object>(known);
    }
  }
  return torch::jit::toPyObject(value);
}

bool is_default(const c10::IValue& value, const c10::Argument& argument) {
  const auto& by_default = argument.default_value();
  return by_default.has_value() && !value.isTensor() && *by_default == value;
}

// Arguments as a caller in Python would give them, who leaves out what is the default.
std::pair<py::tuple, py::dict> as_called(const c10::OperatorHandle& op, const std::vector<c10::IValue>& values) {
  const auto& arguments = op.schema().arguments();
  size_t given = 0;
  py::dict by_name;
  for (size_t place = 0; place < values.size(); ++place) {
    const auto& argument = arguments[place];
    if (is_default(values[place], argument)) {
      continue;
    }
    if (argument.kwarg_only()) {
      by_name[py::str(argument.name())] = to_python(values[place], argument);
    } else {
      given = place + 1;
    }
  }
  py::tuple by_place(given);
  for (size_t place = 0; place < given; ++place) {
    by_place[place] = to_python(values[place], arguments[place]);
  }
  return {by_place, by_name};
}

// What an operator made has no Python object yet where PyTorch calls it in C++, and PyTorch may count on that: it makes
// one of the class that it wants. So a tensor that Python has seen is given another head, but for those that were given.
c10::IValue without_python_object(const c10::IValue& value, const std::vector<const at::TensorImpl*>& given) {
  if (!value.isTensor() || !value.toTensor().defined()) {
    return value;
  }
  const auto* tensor = value.toTensor().unsafeGetTensorImpl();
  const bool was_given = std::find(given.begin(), given.end(), tensor) != given.end();
  if (was_given || tensor->key_set().has(c10::DispatchKey::Python)) {
    return value;
  }
  return at::Tensor(tensor->shallow_copy_and_detach(
      c10::VariableVersion(/*version=*/0), /*allow_tensor_metadata_change=*/true));
}

std::vector<const at::TensorImpl*> tensors_among(const std::vector<c10::IValue>& values) {
  std::vector<const at::TensorImpl*> found;
  for (const auto& value : values) {
    every_tensor(value, [&](const at::Tensor& tensor) {
      found.push_back(tensor.unsafeGetTensorImpl());
      return true;
    });
  }
  return found;
}

void put_results(
    const c10::OperatorHandle& op,
    torch::jit::Stack* stack,
    const py::object& result,
    const std::vector<const at::TensorImpl*>& given) {
  const auto& returns = op.schema().returns();
  if (returns.size() == 1) {
    stack->push_back(without_python_object(torch::jit::toIValue(result, returns[0].real_type()), given));
    return;
  }
  if (returns.empty()) {
    return;
  }
  size_t place = 0;
  for (const py::handle part : result) {
    stack->push_back(without_python_object(torch::jit::toIValue(part, returns.at(place++).real_type()), given));
  }
}

// The owner of the pages, as Python has it (`Callbacks` in `runtime/native_interposer.py`).
class PythonOwner : public Owner {
 public:
  explicit PythonOwner(py::object owner) : owner_(std::move(owner)) {}

  ~PythonOwner() override {
    py::gil_scoped_acquire gil;
    owner_ = py::object();
  }

  Operator describe(const c10::OperatorHandle& op) override {
    py::gil_scoped_acquire gil;
    const py::object told = call("describe", torch::detail::getTorchApiFunction(op));
    auto [passage, name, writes, is_empty, is_seeded, takes_lists, searches, is_repeatable, numbers_matter, grows] =
        told.cast<std::tuple<int, std::string, std::vector<size_t>, bool, bool, bool, bool, bool, bool, bool>>();
    const int number = interposer().name(name);
    return {static_cast<Passage>(passage), number, std::move(writes), is_empty, is_seeded, takes_lists, searches,
            is_repeatable, numbers_matter, grows};
  }

  void run(const c10::OperatorHandle& op, torch::jit::Stack* stack) override {
    py::gil_scoped_acquire gil;
    auto values = torch::jit::pop(*stack, op.schema().arguments().size());
    const auto given = tensors_among(values);
    auto [by_place, by_name] = as_called(op, values);
    values.clear();  // Python holds no argument longer than the operation (N21)
    const py::handle function = torch::detail::getTorchApiFunction(op);
    put_results(op, stack, call("run", function, std::move(by_place), std::move(by_name)), given);
  }

  void hold(
      const c10::OperatorHandle& op, const torch::jit::Stack& stack, const std::function<void()>& what) override {
    py::gil_scoped_acquire gil;
    auto [by_place, by_name] = as_called(op, torch::jit::last(stack, op.schema().arguments().size()).vec());
    const py::handle function = torch::detail::getTorchApiFunction(op);
    const py::object pages = call("hold", function, std::move(by_place), std::move(by_name));
    try {
      what();
    } catch (...) {
      call("let_go", pages);
      throw;
    }
    call("let_go", pages);
  }

  Prepared prepare(int position, const std::vector<PageId>& pages, const std::vector<PageId>& writes) override {
    py::gil_scoped_acquire gil;
    return static_cast<Prepared>(call("prepare", position, pages, writes).cast<int>());
  }

  void without_gil(const std::function<void()>& what) override {
    std::optional<py::gil_scoped_release> free;
    if (PyGILState_Check() != 0) {
      free.emplace();
    }
    what();
  }

  void ended(const std::vector<PageId>& pages, const std::vector<PageId>& written) override {
    py::gil_scoped_acquire gil;
    call("ended", pages, written);
  }

  void born(const at::Tensor& tensor) override {
    py::gil_scoped_acquire gil;
    call("born", py::reinterpret_steal<py::object>(THPVariable_Wrap(tensor)));
  }

  void give_python_objects(const std::vector<at::Tensor>& tensors) override {
    py::gil_scoped_acquire gil;
    for (const at::Tensor& tensor : tensors) {
      PyObject* wrapped = THPStorage_Wrap(tensor.storage());
      if (wrapped == nullptr) {
        throw python_error();
      }
      Py_DECREF(wrapped);
    }
  }

  void room_is_short() override {
    py::gil_scoped_acquire gil;
    call("room_is_short");
  }

  void resized(const std::vector<PageId>& pages) override {
    py::gil_scoped_acquire gil;
    call("resized", pages);
  }

  void ended_pinned(bool wrote) override {
    py::gil_scoped_acquire gil;
    call("ended_pinned", wrote);
  }

  bool is_out_of_memory() override {
    py::gil_scoped_acquire gil;
    py::object error;
    try {
      throw;
    } catch (python_error& raised) {
      error = py::reinterpret_borrow<py::object>(raised.value);
    } catch (py::error_already_set& raised) {
      error = raised.value();
    } catch (const c10::OutOfMemoryError& raised) {
      error = py::module_::import("torch").attr("OutOfMemoryError")(raised.what_without_backtrace());
    } catch (const c10::Error& raised) {
      error = py::reinterpret_borrow<py::object>(PyExc_RuntimeError)(raised.what_without_backtrace());
    } catch (const std::bad_alloc& raised) {
      error = py::reinterpret_borrow<py::object>(PyExc_MemoryError)(raised.what());
    } catch (const std::runtime_error& raised) {
      error = py::reinterpret_borrow<py::object>(PyExc_RuntimeError)(raised.what());
    } catch (...) {
      return false;
    }
    return error && call("is_out_of_memory", error).cast<bool>();
  }

 private:
  // An error of Python's goes on as PyTorch has it, across threads and through its engine.
  template <typename... Args>
  py::object call(const char* name, Args&&... args) {
    try {
      return owner_.attr(name)(std::forward<Args>(args)...);
    } catch (py::error_already_set& raised) {
      raised.restore();
      python_error error;
      error.persist();
      throw error;
    }
  }

  py::object owner_;
};

c10::StorageImpl* storage_of(py::handle storage) {
  if (!THPStorage_Check(storage.ptr())) {
    throw py::type_error("expected an untyped storage");
  }
  return THPStorage_Unpack(storage.ptr()).unsafeGetStorageImpl();
}

// What is left of dead storages is destroyed with neither lock held.
template <typename Do>
auto locked(Do what) {
  auto& all = interposer();
  std::vector<std::unique_ptr<Page>> graveyard;
  std::lock_guard<std::mutex> held(all.lock);
  if constexpr (std::is_void_v<decltype(what(all))>) {
    what(all);
    graveyard = all.pages.take_graveyard();
  } else {
    auto result = what(all);
    graveyard = all.pages.take_graveyard();
    return result;
  }
}

// The same, while nobody moves pages without Python.
template <typename Do>
void undisturbed(Do what) {
  bool is_done = false;
  while (!is_done) {
    {
      py::gil_scoped_release free;
      interposer().wait_for_carrier();
    }
    is_done = locked([&](Interposer& all) {
      if (!all.is_carrying) {
        what(all);
      }
      return !all.is_carrying;
    });
  }
}

void start(py::object owner, const std::string& device_type, py::dict sizes, bool has_streams) {
  Settings settings;
  settings.device_type = c10::Device(device_type).type();
  settings.min_size = sizes["min_size"].cast<int64_t>();
  settings.filled_unseen = sizes["filled_unseen"].cast<int64_t>();
  settings.read_unseen = sizes["read_unseen"].cast<int64_t>();
  settings.read_unseen_wide = sizes["read_unseen_wide"].cast<int64_t>();
  settings.large = sizes["large"].cast<int64_t>();
  settings.runs = sizes["runs"].cast<int64_t>();
  settings.has_streams = has_streams;
  interposer().start(settings, std::make_shared<PythonOwner>(std::move(owner)));
}

PageId find(py::handle storage) {
  const auto* wanted = storage_of(storage);
  return locked([&](Interposer& all) {
    const Page* page = all.pages.find(wanted);
    return page == nullptr ? no_page : page->id;
  });
}

// A young page of Python's own has a name at once.
PageId add(py::handle storage, bool is_young) {
  auto* added = storage_of(storage);
  return locked([&](Interposer& all) {
    const int device = added->device().index();
    Page* page = all.pages.add(added, device, is_young);
    page->is_named = true;
    if (all.is_open) {  // else some of the living may be away
      all.pages.note_peak(device);
    }
    return page->id;
  });
}

void drop(PageId id) {
  locked([&](Interposer& all) {
    if (Page* page = all.pages.find(id)) {
      all.pages.drop(page);
    }
  });
}

void resize(PageId id, int64_t nbytes) {
  locked([&](Interposer& all) {
    if (Page* page = all.pages.find(id)) {
      all.pages.resize(*page, nbytes);
    }
  });
}

std::vector<PageId> take_deaths() {
  return locked([](Interposer& all) {
    all.pages.sweep();
    return all.pages.take_deaths();
  });
}

using Living = std::tuple<PageId, c10::intrusive_ptr<c10::StorageImpl>, StreamId>;

std::optional<Living> living(Page& page) {
  auto storage = page.alive.lock();
  if (!storage) {
    return std::nullopt;
  }
  page.is_named = true;
  return Living{page.id, std::move(storage), page.streams.empty() ? 0 : page.streams.front()};
}

py::object to_python(c10::intrusive_ptr<c10::StorageImpl> storage) {
  PyObject* wrapped = THPStorage_Wrap(c10::Storage(std::move(storage)));
  if (wrapped == nullptr) {
    throw python_error();
  }
  return py::reinterpret_steal<py::object>(wrapped);
}

// Their numbers and storages, and the streams that they were allocated for. One that dies meanwhile is among the next
// deaths.
std::vector<std::tuple<PageId, py::object, StreamId>> take_young() {
  std::vector<Living> found;
  locked([&](Interposer& all) {
    for (Page* page : all.pages.take_young()) {
      if (auto alive = living(*page)) {
        found.push_back(std::move(*alive));
      }
    }
  });
  std::vector<std::tuple<PageId, py::object, StreamId>> young;
  for (auto& [id, storage, stream] : found) {
    young.emplace_back(id, to_python(std::move(storage)), stream);
  }
  return young;
}

// One of a plan's operations, as Python tells of it: see `PlannedOp`.
using Numbers = std::vector<int>;
using Moments = std::tuple<Numbers, Numbers, Numbers, Numbers>;  // `evicts`, `fetches`, `drops`, `recomputes`
using AsTold = std::tuple<std::string, Numbers, Numbers, Numbers, int64_t, Moments, bool, bool, bool, bool>;
using Recomputed = std::tuple<int, Numbers, int64_t, Numbers>;  // see `Recomputation`

std::shared_ptr<StepPlan> new_plan(
    const std::vector<AsTold>& ops, std::vector<int64_t> nbytes, const std::vector<Recomputed>& recomputations) {
  auto plan = std::make_shared<StepPlan>();
  for (const auto& [name, pages, creates, dies, new_bytes, moments, moves, is_simple, is_captured, is_python] : ops) {
    const auto& [evicts, fetches, drops, recomputes] = moments;
    plan->ops.push_back(
        {interposer().name(name), pages, creates, dies, new_bytes, evicts, fetches, drops, recomputes, moves, is_simple,
         is_captured, is_python});
  }
  plan->nbytes = std::move(nbytes);
  for (const auto& [page, inputs, extra_bytes, repeated] : recomputations) {
    plan->recomputations.push_back({page, inputs, extra_bytes, repeated});
  }
  return plan;
}

// Its state and tier; whether its lower copy is new, whether it has to stay on the device; how often it was written.
using PageState = std::tuple<PageId, int, int, bool, bool, int64_t>;

// As `Planned` in `policy/planned.py` has them: the pages that are due, and those to be evicted, fetched and dropped.
using Lists = std::tuple<std::vector<PageId>, std::vector<PageId>, std::vector<PageId>, std::vector<PageId>>;

// How a page is recomputed: its number among the plan's recomputations, the inputs, and the bytes needed meanwhile.
using AsRecipe = std::tuple<PageId, int, std::vector<PageId>, int64_t>;

std::shared_ptr<const Recipe> as_recipe(const AsRecipe& told) {
  const auto& [page, number, inputs, extra_bytes] = told;
  return std::make_shared<const Recipe>(Recipe{number, inputs, extra_bytes});
}

AsRecipe told(PageId page, const Recipe& recipe) {
  return {page, recipe.number, recipe.inputs, recipe.extra_bytes};
}

// Without a plan: see `Moving` for the first two, and `Handover` for the others.
using AsOutlook = std::tuple<int64_t, int64_t, int64_t, int64_t>;

// Bytes: the limit, those on the device, the most that lived, the most that were on the device. Last, the patience.
using Sizes = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t>;

// Who performs moves, of the CPU or of a device with streams (none: Python); the calls of the step; the number of the tier
// below; bytes that are created until Python is asked, and when it is, if room is short; the tick of the last operation.
using AsCarrier =
    std::tuple<std::shared_ptr<Spill>, std::shared_ptr<Lanes>, std::shared_ptr<Calls>, int, int64_t, double, int64_t>;

void follow(
    std::shared_ptr<StepPlan> plan,
    bool is_new,
    int position,
    int device,
    const Sizes& sizes,
    const std::vector<std::pair<int64_t, int64_t>>& tiers,
    const std::vector<PageState>& states,
    const std::vector<std::pair<PageId, int>>& bound,
    const Lists& lists,
    const std::vector<AsRecipe>& planned,
    const std::vector<AsRecipe>& dropped,
    const AsOutlook& outlook,
    const AsCarrier& carrier) {
  locked([&](Interposer& all) {
    for (const auto& [id, state, tier, has_new_copy, is_fixed, writes] : states) {
      if (Page* page = all.pages.find(id)) {
        all.pages.set(*page, static_cast<State>(state), tier);
        page->has_new_copy = has_new_copy;
        page->is_fixed = is_fixed;
        page->writes = writes;
      }
    }
    all.pages.take_moved();
    all.pages.take_stale();
    Moving& moving = all.following.moving;
    const auto& [due, to_evict, to_fetch, to_drop] = lists;
    moving.due.assign(due);
    moving.to_evict.assign(to_evict);
    moving.to_fetch.assign(to_fetch);
    moving.to_drop.assign(to_drop);
    moving.clear_recipes();
    for (const auto& recipe : planned) {
      if (Page* page = all.pages.find(std::get<0>(recipe))) {
        moving.set_planned(*page, as_recipe(recipe));
      }
    }
    for (const auto& recipe : dropped) {
      if (Page* page = all.pages.find(std::get<0>(recipe))) {
        moving.set_dropped(*page, as_recipe(recipe));
      }
    }
    moving.capacities.clear();
    Handover handover{};
    for (const auto& [held, capacity] : tiers) {
      handover.held[moving.capacities.size()] = held;
      moving.capacities.push_back(capacity);
    }
    handover.plan = std::move(plan);
    handover.is_new = is_new;
    handover.position = position;
    handover.device = device;
    std::tie(handover.limit, handover.resident, handover.peak, handover.resident_peak, handover.patience_us) = sizes;
    std::tie(moving.reserve, moving.spared, handover.most_ops, handover.most_at_once) = outlook;
    Carrier& its = handover.carrier;
    std::tie(its.spill, its.lanes, its.calls, its.tier, its.most_made, its.until_s, its.tick) = carrier;
    all.following.begin(std::move(handover));
    for (const auto& [id, number] : bound) {
      if (Page* page = all.pages.find(id)) {
        all.following.bind(*page, number);
      }
    }
    all.is_following = true;
  });
}

// See `Interposer::move`. None, or the journal until then and its operations; how many operations passed since Python
// handed over; bytes that operations created for which pages moved without Python; the bytes on the device and in each
// lower tier after the moves; the moves, each with the last use of its page, counted in operations since then (-1 if there
// was none); how those are recomputed that are dropped; pages among them that Python does not know.
py::object move(
    int position,
    const std::vector<PageId>& pages,
    const std::vector<PageId>& written,
    const std::vector<PageId>& landed) {
  std::optional<std::vector<Move>> moves;
  std::shared_ptr<Journal> journal;
  int64_t journaled = 0;
  int64_t ops = 0;
  int64_t made_bytes = 0;
  Account account;
  std::vector<std::tuple<int, PageId, int, int64_t>> asked;
  std::vector<AsRecipe> recipes;
  std::vector<Living> unknown;
  const auto note_unknown = [&](Page* page) {
    if (page != nullptr && !page->is_named) {
      if (auto alive = living(*page)) {  // which names it
        unknown.push_back(std::move(*alive));
      }
    }
  };
  locked([&](Interposer& all) {
    moves = all.move(position, pages, written, landed);
    if (!moves) {
      return;
    }
    for (const auto& [act, id, tier] : *moves) {
      Page* page = all.pages.find(id);
      const bool was_used = page != nullptr && page->is_touched;
      asked.emplace_back(static_cast<int>(act), id, tier, was_used ? page->touch.tick : -1);
      if (act == Act::drop && page != nullptr) {
        recipes.push_back(told(id, *page->planned_recipe));
        for (const PageId input : page->planned_recipe->inputs) {
          note_unknown(all.pages.find(input));
        }
      }
      if (act == Act::recompute && page != nullptr && page->program) {
        for (const Program::Input& input : page->program->inputs()) {
          note_unknown(all.pages.find(input.page));
        }
      }
      note_unknown(page);
    }
    std::tie(journal, journaled) = all.following.cut();
    ops = all.following.ops();
    made_bytes = all.following.take_made();
    account = all.pages.account(all.following.device());
  });
  if (!moves) {
    return py::none();
  }
  py::list known;
  for (auto& [id, storage, stream] : unknown) {
    known.append(py::make_tuple(id, to_python(std::move(storage)), stream));
  }
  return py::make_tuple(journal, journaled, ops, made_bytes, account.resident, account.held, asked, recipes, known);
}

// The moves were performed. If not all: the first `count`, and after the next its page is as told. The operation has not
// begun then.
void moved(bool are_all, size_t count, PageId failed, int state) {
  locked([&](Interposer& all) {
    if (!std::exchange(all.following.is_moving, false)) {
      return;
    }
    if (!are_all) {
      all.following.go_back(count, failed, static_cast<State>(state));
      all.following.retreat();
    }
    all.following.wait_for_room();
  });
}

py::tuple as_counts(const Done& done) {
  return py::make_tuple(
      done.evictions, done.evicted_bytes, done.fetches, done.fetched_bytes, done.recomputes, done.recomputed_bytes,
      done.clean_drops, done.from_one, done.from_some, done.from_all);
}

// Bytes on the device and in each lower tier, and what was moved since Python handed over. None if no plan is followed.
py::object progress() {
  bool is_following = false;
  Account account;
  Done done;
  locked([&](Interposer& all) {
    is_following = all.is_following;
    account = all.pages.account(all.following.device());
    done = all.following.moving.done;
  });
  if (!is_following) {
    return py::none();
  }
  return py::make_tuple(account.resident, account.held, as_counts(done));
}

py::object take_over() {
  std::vector<std::pair<Living, int>> born;
  std::vector<std::tuple<uint64_t, PageId, int64_t, int64_t>> touched;
  std::vector<std::tuple<PageId, int, int, bool>> moved;
  std::vector<AsRecipe> planned;
  std::vector<AsRecipe> dropped;
  std::vector<PageId> stale;
  std::vector<PageId> deaths;
  Done done;
  Lists lists;
  std::vector<OnIt> running;
  std::vector<std::tuple<std::string, int64_t, bool>> unplanned;
  std::vector<std::pair<PageId, int64_t>> first_uses;
  int64_t made_bytes = 0;
  Passed passed;
  Account account;
  undisturbed([&](Interposer& all) {
    std::tie(passed, running) = all.take_over();
    account = all.pages.account(all.following.device());
    all.pages.account(all.following.device()).peak = 0;
    deaths = all.pages.take_deaths();
    for (const PageId id : passed.births) {
      Page* page = all.pages.find(id);
      if (page == nullptr) {
        continue;
      }
      if (auto alive = living(*page)) {
        born.emplace_back(std::move(*alive), page->number);
      }
    }
    for (const Page* page : all.pages.take_moved()) {
      moved.emplace_back(page->id, static_cast<int>(page->state), page->tier, page->has_new_copy);
      if (page->recipe) {
        dropped.push_back(told(page->id, *page->recipe));
      }
    }
    stale = all.pages.take_stale();
    Moving& moving = all.following.moving;
    done = moving.done;
    lists = {moving.due.ids(), moving.to_evict.ids(), moving.to_fetch.ids(), moving.to_drop.ids()};
    moving.planned.every([&](const Page& page) {
      planned.push_back(told(page.id, *page.planned_recipe));
      return true;
    });
    for (const PlannedOp& op : passed.unplanned) {
      unplanned.emplace_back(all.name(op.name), op.new_bytes, op.is_repeatable);
    }
    if (!all.following.is_planned()) {
      made_bytes = all.following.take_made();
      first_uses = passed.touched;
    }
    for (const auto& [id, first_use] : passed.touched) {
      if (Page* page = all.pages.find(id)) {
        page->is_touched = false;
        touched.emplace_back(page->touch.at, id, page->touch.tick, page->touch.writes);
      }
    }
  });
  std::sort(touched.begin(), touched.end());
  py::list births;
  for (auto& [page, number] : born) {
    auto& [id, storage, stream] = page;
    births.append(py::make_tuple(id, to_python(std::move(storage)), stream, number));
  }
  py::list uses;
  for (const auto& [at, id, tick, writes] : touched) {
    uses.append(py::make_tuple(id, tick, writes));
  }
  return py::make_tuple(
      passed.journal, passed.journaled, passed.ops, passed.position, passed.created, births, passed.bound, uses, deaths,
      account.peak, account.resident_peak, moved, as_counts(done), lists, planned, dropped, stale, running,
      py::make_tuple(unplanned, first_uses, made_bytes));
}

Held held(py::handle storage) {
  return Held::reclaim_copy(storage_of(storage));
}

// Without the GIL, for which an operation may wait that runs now. What copies held goes with it.
template <typename Copies, typename Do>
auto waiting(Copies& copies, Do what) {
  std::vector<Held> let_go;
  const py::gil_scoped_release free;  // until the end, but for what is let go
  if constexpr (std::is_void_v<decltype(what())>) {
    what();
    let_go = copies.take_let_go();
  } else {
    auto result = what();
    let_go = copies.take_let_go();
    return result;
  }
}

// A call that Python is about to make. `writes`: the positions of the arguments that it writes; `writes_of`: how often a
// page was written so far.
std::shared_ptr<Call> record(
    const std::string& name,
    const std::string& overload,
    const py::tuple& by_place,
    const py::dict& by_name,
    const std::vector<size_t>& writes,
    const std::function<int64_t(PageId)>& writes_of) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
  const torch::jit::ToIValueAllowNumbersAsTensors also_numbers(true);
  const auto stack = torch::jit::createStackForSchema(
      op.schema(), torch::jit::tuple_slice(by_place), py::reinterpret_borrow<py::kwargs>(by_name), std::nullopt);
  auto given = locked([&](Interposer& all) { return all.given(stack, writes); });
  for (auto& [page, read] : given.reads) {
    read.writes = writes_of(page);
  }
  return std::make_shared<Call>(op, stack, std::move(given.pages), std::move(given.reads));
}

// Such a call gave `result`.
void made(Call& call, const py::object& result, const py::object& /*find*/) {
  torch::jit::Stack results;
  put_results(call.op(), &results, result, {});
  locked([&](Interposer& all) { call.made(results, [&](const at::Tensor& tensor) { return all.page_of(tensor); }); });
}

// Repeats it, on these storages of the pages among its arguments. Those of the pages that it makes.
std::map<PageId, py::object> repeat(const Call& call, const std::map<PageId, py::object>& given) {
  std::map<PageId, Held> storages;
  for (const auto& [page, storage] : given) {
    storages[page] = held(storage);
  }
  HANDLE_TH_ERRORS
  call.repeat(storages);
  END_HANDLE_TH_ERRORS_PYBIND
  std::map<PageId, py::object> made;
  for (const PageId page : call.results()) {
    made[page] = to_python(storages.at(page));
  }
  return made;
}

// How the page is recomputed from now on: by the calls at these positions, from these pages. Whether that gives it as it
// is; if not, nothing changed. `writes_of`: how often a page was written so far, -1 if it is none any more.
bool bind(
    Calls& calls,
    PageId id,
    const std::vector<PageId>& inputs,
    const std::vector<int>& ops,
    const std::function<int64_t(PageId)>& writes_of) {
  auto program = std::make_shared<Program>(id, calls.at(ops));
  const bool is_able = program->makes_it_from(inputs, writes_of) &&
      locked([&](Interposer& all) { return program->takes(inputs, all.pages); }) && program->hold();
  if (!is_able) {
    return false;
  }
  locked([&](Interposer& all) {
    if (Page* page = all.pages.find(id)) {
      std::swap(page->program, program);
    }
  });
  return true;
}

std::shared_ptr<Program> program_of(PageId id) {
  return locked([&](Interposer& all) {
    const Page* page = all.pages.find(id);
    return page == nullptr ? nullptr : page->program;
  });
}

// What it is recomputed from; nothing if there is no way to.
std::vector<PageId> inputs(PageId id) {
  std::vector<PageId> pages;
  if (const auto program = program_of(id)) {
    for (const Program::Input& input : program->inputs()) {
      pages.push_back(input.page);
    }
  }
  return pages;
}

// Gives the page's emptied storage its content again. Errors are PyTorch's.
void recompute(PageId id, py::handle storage, int64_t nbytes) {
  HANDLE_TH_ERRORS
  const auto program = program_of(id);
  TORCH_CHECK(program, "nothing is known of how page ", id, " is recomputed");
  const Held target = held(storage);
  const py::gil_scoped_release free;
  program->run(target, nbytes);
  END_HANDLE_TH_ERRORS_PYBIND
}

std::shared_ptr<Program> take_program(PageId id) {
  return locked([&](Interposer& all) {
    Page* page = all.pages.find(id);
    return page == nullptr ? nullptr : std::exchange(page->program, nullptr);
  });
}

// A list of each attribute: objects for each copy would keep the garbage collector busy.
auto as_columns(const std::vector<Copied>& copies) {
  std::tuple<std::vector<bool>, std::vector<double>, std::vector<double>, std::vector<int64_t>, std::vector<PageId>> told;
  for (const Copied& copied : copies) {
    std::get<0>(told).push_back(copied.is_up);
    std::get<1>(told).push_back(copied.began_s);
    std::get<2>(told).push_back(copied.ended_s);
    std::get<3>(told).push_back(copied.nbytes);
    std::get<4>(told).push_back(copied.page);
  }
  return told;
}

// The same; errors are PyTorch's.
template <typename Do>
auto asking(Lanes& lanes, Do what) {
  HANDLE_TH_ERRORS
  return waiting(lanes, what);
  END_HANDLE_TH_ERRORS_PYBIND
}

void hinder(std::optional<Tampering::Hindrance> hindrance) {
  Tampering::hinder(hindrance ? std::make_shared<const Tampering::Hindrance>(std::move(*hindrance)) : nullptr);
}

void refuse(std::optional<Tampering::Refusal> refusal) {
  Tampering::refuse(refusal ? std::make_shared<const Tampering::Refusal>(std::move(*refusal)) : nullptr);
}

// Another tensor of the same storage, which may be too small for it: whoever uses it sees to that.
at::Tensor alias(const at::Tensor& tensor, std::vector<int64_t> sizes, std::vector<int64_t> strides, int64_t offset) {
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(tensor.storage()), tensor.key_set(), tensor.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return made;
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  py::class_<StepPlan, std::shared_ptr<StepPlan>>(module, "StepPlan").def(py::init(&new_plan));
  py::class_<Journal, std::shared_ptr<Journal>>(module, "Journal")
      .def("events", [](const Journal& journal) {
        std::vector<std::tuple<int, int64_t, int64_t, double>> told;
        for (const Event& event : journal.events()) {
          told.emplace_back(static_cast<int>(event.what), event.which, event.nbytes, event.at_s);
        }
        return told;
      })
      .def("moments", &Journal::moments)
      .def("begun", &Journal::begun)
      .def("marks", &Journal::marks);
  py::class_<Call, std::shared_ptr<Call>>(module, "Call").def("made", &made).def("repeat", &repeat);
  py::class_<Calls, std::shared_ptr<Calls>>(module, "Calls")
      .def(py::init<>())
      .def("keep", [](Calls& calls, int position, const std::shared_ptr<Call>& call) { calls.keep(position, call); })
      .def("clear", &Calls::clear)
      .def("bind", &bind);
  py::class_<Spill, std::shared_ptr<Spill>>(module, "Spill")
      .def(py::init<int, size_t>())
      .def("grant", &Spill::grant)
      .def("free_bytes", &Spill::free_bytes)
      .def("has", &Spill::has)
      .def("start_evict", [](Spill& spill, PageId page, py::handle storage) {
        const Held source = held(storage);
        return waiting(spill, [&] { return spill.start_evict(page, source); });
      })
      .def("start_fetch", [](Spill& spill, PageId page, py::handle storage) {
        const Held target = held(storage);
        waiting(spill, [&] { spill.start_fetch(page, target, /*is_awaited=*/false); });
      })
      .def("finish", [](Spill& spill, PageId page, double patience_s) {
        const std::chrono::microseconds patience{static_cast<int64_t>(patience_s * 1e6)};
        return waiting(spill, [&] { return spill.finish(page, patience); });
      })
      .def("discard", [](Spill& spill, PageId page) { waiting(spill, [&] { spill.discard(page); }); })
      .def("place", &Spill::place)
      .def("landed", &Spill::landed)
      .def("made", &Spill::made)
      .def("take_copied", [](Spill& spill) { return as_columns(spill.take_copied()); })
      .def("take_stalled_s", &Spill::take_stalled_s)
      .def("effort", &Spill::effort)
      .def("close", [](Spill& spill) { waiting(spill, [&] { spill.close(); }); })
      .def("abandon", [](std::shared_ptr<Spill> spill) {  // its threads stayed with the parent: it is never destroyed
        new std::shared_ptr<Spill>(std::move(spill));
      });
  py::class_<Moment, Mark>(module, "Moment")
      .def("is_past", torch::wrap_pybind_function_no_gil(&Moment::is_past))
      .def("wait", torch::wrap_pybind_function_no_gil(&Moment::wait))
      .def("seconds_since", torch::wrap_pybind_function_no_gil(&Moment::seconds_since));
  py::class_<Lanes, std::shared_ptr<Lanes>>(module, "Lanes")
      .def(py::init<const std::string&>())
      .def("copy_on", [](Lanes& lanes, StreamId out, StreamId in) { asking(lanes, [&] { lanes.copy_on(out, in); }); })
      .def("grant", [](Lanes& lanes, int64_t offset, int64_t length, uintptr_t address) {
        asking(lanes, [&] { lanes.grant(offset, length, address); });
      })
      .def("take_back", [](Lanes& lanes, int64_t offset, int64_t length) {
        return asking(lanes, [&] { return lanes.take_back(offset, length); });
      })
      .def("free_bytes", [](Lanes& lanes) { return asking(lanes, [&] { return lanes.free_bytes(); }); })
      .def("wait_for_memory", [](Lanes& lanes) { return asking(lanes, [&] { return lanes.wait_for_memory(); }); })
      .def("record", [](Lanes& lanes, StreamId stream) { return asking(lanes, [&] { return lanes.record(stream); }); })
      .def("hold_up", [](Lanes& lanes, StreamId stream, const Moment& moment) {
        asking(lanes, [&] { lanes.hold_up(stream, moment); });
      })
      .def("mark", [](Lanes& lanes, int64_t tick) { return asking(lanes, [&] { return lanes.mark(tick); }); })
      .def("forget_marks", [](Lanes& lanes) { asking(lanes, [&] { lanes.forget_marks(); }); })
      .def("use", [](Lanes& lanes, PageId page, py::handle storage) {
        const Held used = held(storage);
        return asking(lanes, [&] { return lanes.use(page, used); });
      })
      .def("born", [](Lanes& lanes, PageId page, StreamId home) { asking(lanes, [&] { lanes.born(page, home); }); })
      .def("adopt", [](Lanes& lanes, PageId page) { asking(lanes, [&] { lanes.adopt(page); }); })
      .def("streams_of", [](Lanes& lanes, PageId page) {
        return asking(lanes, [&] { return lanes.streams_of(page); });
      })
      .def("known", [](Lanes& lanes) { return asking(lanes, [&] { return lanes.known(); }); })
      .def("has", [](Lanes& lanes, PageId page) { return asking(lanes, [&] { return lanes.has(page); }); })
      .def("start_evict", [](Lanes& lanes, PageId page, py::handle storage, int64_t last_use) {
        const Held source = held(storage);
        return asking(lanes, [&] { return lanes.start_evict(page, source, last_use); });
      })
      .def("await_uses", [](Lanes& lanes, PageId page, int64_t last_use) {
        asking(lanes, [&] { lanes.await_uses(page, last_use); });
      })
      .def("finish_evict", [](Lanes& lanes, PageId page) { asking(lanes, [&] { lanes.finish_evict(page); }); })
      .def("release", [](Lanes& lanes, PageId page, py::handle storage) {
        const Held freed = held(storage);
        asking(lanes, [&] { lanes.release(page, freed); });
      })
      .def("start_fetch", [](Lanes& lanes, PageId page, py::handle storage) {
        const Held target = held(storage);
        asking(lanes, [&] { lanes.start_fetch(page, target); });
      })
      .def("finish_fetch", [](Lanes& lanes, PageId page) { asking(lanes, [&] { lanes.finish_fetch(page); }); })
      .def("allocate", [](Lanes& lanes, PageId page, py::handle storage, int64_t nbytes) {
        const Held target = held(storage);
        asking(lanes, [&] { lanes.allocate(page, target, nbytes); });
      })
      .def("came", [](Lanes& lanes, PageId page) { return asking(lanes, [&] { return lanes.came(page); }); })
      .def("begin_recompute", [](Lanes& lanes, PageId page) {
        return asking(lanes, [&] { return lanes.begin_recompute(page); });
      })
      .def("end_recompute", [](Lanes& lanes, PageId page, const std::vector<PageId>& inputs, StreamId before, bool is_done) {
        asking(lanes, [&] { lanes.end_recompute(page, inputs, before, is_done); });
      })
      .def("discard", [](Lanes& lanes, PageId page) { asking(lanes, [&] { lanes.discard_copy(page); }); })
      .def("forget", [](Lanes& lanes, PageId page) { asking(lanes, [&] { lanes.forget(page); }); })
      .def("landed", [](Lanes& lanes) { return asking(lanes, [&] { return lanes.landed(); }); })
      .def("made", [](Lanes& lanes) { return asking(lanes, [&] { return lanes.made(); }); })
      .def("take_copied", [](Lanes& lanes, const Moment& near, double near_s) {
        return as_columns(asking(lanes, [&] { return lanes.take_copied(near, near_s); }));
      })
      .def("take_stalled_s", [](Lanes& lanes) { return asking(lanes, [&] { return lanes.take_stalled_s(); }); })
      .def("close", [](Lanes& lanes) { asking(lanes, [&] { lanes.close(); }); })
      .def("abandon", [](std::shared_ptr<Lanes> lanes) {  // of its events none is destroyed
        new std::shared_ptr<Lanes>(std::move(lanes));
      });
  module.def("record", &record);
  module.def("inputs", &inputs);
  module.def("recompute", &recompute);
  module.def("unbind", [](PageId id) { take_program(id); });
  module.def("kernel_settings", &kernel_settings_now);
  module.def("hinder", &hinder);
  module.def("refuse", &refuse);
  module.def("fail_next_copy", [] { Tampering::fails_next = true; });
  module.def("be_silent", [](bool is_silent) { Tampering::is_silent = is_silent; });
  module.def("alias", &alias);
  module.def("follow", &follow);
  module.def("move", &move);
  module.def("moved", &moved);
  module.def("progress", &progress);
  module.def("take_over", &take_over);
  module.def("claim", [](const std::string& key) { interposer().claim(key); });
  module.def("start", &start);
  module.def("stop", [] { interposer().stop(); });
  module.def("include", [](bool is_included) { return interposer().include(is_included); });
  module.def("exclude", [](bool is_excluded) { return interposer().exclude(is_excluded); });
  module.def("open", [](const std::vector<Opening>& openings) { interposer().open(openings); });
  module.def("close", [] { return interposer().close(); });
  module.def("ask_python", [](bool always) { interposer().asks_python = always; });
  module.def("set_asides", [](const std::set<uint64_t>& threads) {
    locked([&](Interposer& all) { all.asides = threads; });
  });
  module.def("set_min_size", [](int64_t nbytes) {
    locked([&](Interposer& all) { all.set_min_size(nbytes); });
  });
  module.def("entered", [] { return locked([](Interposer& all) { return all.entered; }); });
  module.def("find", &find);
  module.def("add", &add);
  module.def("writes", [](PageId id) {  // since Python last heard
    return locked([&](Interposer& all) {
      const Page* page = all.pages.find(id);
      return page == nullptr ? -1 : page->is_touched ? page->touch.writes : 0;
    });
  });
  module.def("nbytes", [](PageId id) {
    return locked([&](Interposer& all) {
      const Page* page = all.pages.find(id);
      return page == nullptr ? 0 : page->nbytes;
    });
  });
  module.def("name", [](PageId id) {
    return locked([&](Interposer& all) {
      Page* page = all.pages.find(id);
      if (page == nullptr) {
        return StreamId{0};
      }
      page->is_named = true;
      return page->streams.empty() ? StreamId{0} : page->streams.front();
    });
  });
  module.def("use_on", [](PageId id, StreamId stream) {
    locked([&](Interposer& all) {
      if (!all.knows(stream)) {
        all.streams.push_back(stream);
      }
      Page* page = all.pages.find(id);
      if (page != nullptr && !page->may_be_used_on(stream)) {
        page->streams.push_back(stream);
      }
    });
  });
  module.def("forget_streams", [](const std::vector<PageId>& ids) {
    locked([&](Interposer& all) {
      for (const PageId id : ids) {
        if (Page* page = all.pages.find(id)) {
          page->streams.clear();
        }
      }
    });
  });
  module.def("drop", &drop);
  module.def("resize", &resize);
  module.def("take_deaths", &take_deaths);
  module.def("take_young", &take_young);
  module.def("live_bytes", [](int device) {
    return locked([&](Interposer& all) {
      all.pages.sweep();
      return all.pages.account(device).live;
    });
  });
  module.def("take_peak", [](int device) { return locked([&](Interposer& all) { return all.pages.take_peak(device); }); });
  module.def("count", [] { return locked([](Interposer& all) { return all.pages.size(); }); });
}

}  // namespace torch_lms
