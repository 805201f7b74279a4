// SPDX-License-Identifier: BSD-3-Clause
// Lays the log out in mapped memory, and updates and restores blocks.
//
// A process that is killed ends between two instructions, and what it has stored until then stays.
// Survivors look only after its end. So it is the order of stores in the program that matters, as
// between a function and a signal handler: no processor has to be told.
#include "lockstep/optim/update_log.h"

#include <algorithm>
#include <array>
#include <cstring>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/util/SmallVector.h>

#include "lockstep/optim/kernels/element_types.h"
#include "lockstep/parallel/one_copy.h"
#include "lockstep/tensor/kernels/reduce.h"
#include "lockstep/tensor/reduce_op.h"

namespace lockstep::optim {
namespace {

constexpr std::int64_t kLine = 64;  // bytes of a cache line
constexpr std::int64_t kMaxElementSize = 8;
constexpr std::size_t kRanksOnStack = 8;

// Elements of a block: so few that the old contents, the log, the gradients and their means fit
// into the core's fastest cache together.
constexpr std::int64_t kLogged = 256;

std::int64_t whole_lines(std::int64_t bytes) {
  return (bytes + kLine - 1) / kLine * kLine;
}

std::int64_t blocks_of(ElementRange range) {
  return (range.count + kLogged - 1) / kLogged;
}

at::TensorOptions state_options(const at::Tensor& parameter) {
  return at::TensorOptions().dtype(state_type(parameter.scalar_type())).device(at::kCPU);
}

// Stores before it precede stores after it, whenever the process is killed.
void in_this_order() {
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

// Memory of a part, element by element.
struct Array {
  std::byte* begin;
  std::int64_t element_size;
};

// The values of a part, and its state.
using Arrays = c10::SmallVector<Array, 4>;

Arrays arrays_of(const UpdateLog::Part& part) {
  Arrays arrays;
  const auto add = [&](const at::Tensor& tensor) {
    arrays.push_back({static_cast<std::byte*>(tensor.data_ptr()), tensor.element_size()});
  };
  add(part.values);
  for (const at::Tensor& tensor : part.state) add(tensor);
  return arrays;
}

// The elements of a block, counted in its part.
ElementRange elements_of(const UpdateLog::Part& part, std::int64_t block) {
  const std::int64_t begin = block * kLogged;
  return {begin, std::min(kLogged, part.range.count - begin)};
}

// Calls function(address, bytes) for these elements of each array.
template <class Function>
void for_each_piece(const Arrays& arrays, ElementRange elements, const Function& function) {
  for (const Array& array : arrays) {
    function(array.begin + elements.begin * array.element_size,
             static_cast<std::size_t>(elements.count * array.element_size));
  }
}

}  // namespace

// The log of one thread. Its data are as for_each_piece() visits the block.
struct UpdateLog::Slot {
  // One more than the number of the block that is in the log; 0 for none.
  alignas(kLine) std::atomic<std::int64_t> next_block;

  std::byte* data() { return reinterpret_cast<std::byte*>(this) + sizeof(Slot); }
};

UpdateLog::UpdateLog(ProcessGroup& group, const FlatParameters& flat, int kinds) : group_(group) {
  const at::NoGradGuard no_grad;
  std::int64_t state_bytes = 0;
  std::int64_t element_bytes = 0;  // of a value and its state
  for (std::size_t number = 0; number < flat.parameters(); ++number) {
    const at::Tensor& parameter = flat.parameter(number);
    values_.push_back(parameter.variable_data());
    const auto size = static_cast<std::int64_t>(state_options(parameter).dtype().itemsize());
    state_offsets_.push_back(state_bytes);
    state_bytes += whole_lines(parameter.numel() * size);
    element_bytes = std::max(element_bytes, parameter.element_size() + kinds * size);
  }
  state_offsets_.push_back(state_bytes);

  std::int64_t blocks = 0;
  for (int rank = 0; rank < group.size(); ++rank) {
    std::vector<Part>& parts = parts_.emplace_back();
    for (std::size_t bucket = 0; bucket < flat.buckets(); ++bucket) {
      for (const ParameterPart& part : flat.parts(bucket, rank)) {
        const at::Tensor& whole = values_[part.number];
        parts.push_back({.owner = rank,
                         .number = part.number,
                         .parameter = part.parameter,
                         .range = part.range,
                         .gradients = part.gradients,
                         .values = whole.as_strided({part.range.count}, {1},
                                                    whole.storage_offset() + part.range.begin),
                         .state = {},
                         .first_block = blocks});
        blocks += blocks_of(part.range);
      }
    }
  }

  const at::Tensor threads = at::full({1}, at::get_num_threads(), at::kLong);
  group.all_reduce(threads, ReduceOp::max).wait();
  slots_ = threads.item<std::int64_t>();
  slot_bytes_ = whole_lines(std::int64_t{sizeof(Slot)} + kLogged * element_bytes);
  const std::int64_t begun_bytes = whole_lines(group.size() * std::int64_t{sizeof *begun_});
  const std::int64_t note_bytes =
      whole_lines(2 * static_cast<std::int64_t>(flat.parameters() * sizeof(Note)));
  const std::int64_t complete_bytes = whole_lines(blocks * std::int64_t{sizeof *complete_});
  memory_ = group.common_memory(
      {begun_bytes + note_bytes + complete_bytes + group.size() * slots_ * slot_bytes_},
      at::TensorOptions().dtype(at::kByte).device(at::kCPU));
  auto* const memory = static_cast<std::byte*>(memory_.data_ptr());
  begun_ = reinterpret_cast<std::atomic<std::int64_t>*>(memory);
  notes_ = reinterpret_cast<Note*>(memory + begun_bytes);
  complete_ = reinterpret_cast<std::atomic<std::uint32_t>*>(memory + begun_bytes + note_bytes);
  first_slot_ = memory + begun_bytes + note_bytes + complete_bytes;
}

void UpdateLog::reserve_state(int kinds) {
  while (static_cast<int>(state_.size()) < kinds) {
    state_.push_back(group_.common_memory({state_offsets_.back()},
                                          at::TensorOptions().dtype(at::kByte).device(at::kCPU)));
    for (std::vector<Part>& parts : parts_) {
      for (Part& part : parts) {
        const auto options = state_options(part.parameter);
        const auto size = static_cast<std::int64_t>(options.dtype().itemsize());
        part.state.push_back(state_.back()
                                 .narrow(0, state_offsets_[part.number] + part.range.begin * size,
                                         part.range.count * size)
                                 .view(c10::typeMetaToScalarType(options.dtype())));
      }
    }
  }
}

at::Tensor UpdateLog::state(std::size_t number, int kind) const {
  const at::Tensor like = at::empty_strided(values_[number].sizes(), values_[number].strides(),
                                            state_options(values_[number]).device(at::kMeta));
  return common_tensor(like, state_[static_cast<std::size_t>(kind)], state_offsets_[number]);
}

void UpdateLog::set_note(std::int64_t update, std::size_t number, const Note& note) {
  notes_[static_cast<std::size_t>(update % 2) * values_.size() + number] = note;
}

UpdateLog::Note UpdateLog::note(std::int64_t update, std::size_t number) const {
  return notes_[static_cast<std::size_t>(update % 2) * values_.size() + number];
}

void UpdateLog::begin(std::int64_t update) {
  update_ = update;
  begun_[group_.rank()].store(update, std::memory_order_relaxed);
  in_this_order();
}

std::int64_t UpdateLog::last_begun() const {
  std::int64_t last = 0;
  for (int rank = 0; rank < group_.size(); ++rank) {
    last = std::max(last, begun_[rank].load(std::memory_order_relaxed));
  }
  return last;
}

bool UpdateLog::is_complete(std::int64_t block) const {
  return complete_[block].load(std::memory_order_relaxed) == static_cast<std::uint32_t>(update_);
}

UpdateLog::Slot& UpdateLog::slot(std::int64_t index) const {
  return *reinterpret_cast<Slot*>(first_slot_ + index * slot_bytes_);
}

void UpdateLog::update(const Part& part, bool averages, UpdateBlock update) {
  const std::int64_t blocks = blocks_of(part.range);
  const std::int64_t worth = (part.range.count + kGrain - 1) / kGrain;
  const std::int64_t tasks = std::min(worth, slots_);
  at::parallel_for(0, tasks, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t task = first; task < last; ++task) {
      update_blocks(part, blocks * task / tasks, blocks * (task + 1) / tasks,
                    slot(group_.rank() * slots_ + task), averages, update);
    }
  });
}

// In one thread, with its log.
void UpdateLog::update_blocks(const Part& part, std::int64_t first, std::int64_t last, Slot& log,
                              bool averages, UpdateBlock update) {
  const Arrays arrays = arrays_of(part);
  const at::ScalarType type = part.values.scalar_type();
  const std::int64_t size = part.values.element_size();
  const double scale = scale_over(static_cast<int>(part.gradients.size()), ReduceOp::mean, 1);
  std::byte* const own = part.gradients[static_cast<std::size_t>(part.owner)];
  c10::SmallVector<const void*, kRanksOnStack> from(part.gradients.size());
  // Means do not replace gradients yet, which are needed if the block is computed again.
  alignas(kLine) std::array<std::byte, kLogged * kMaxElementSize> means;
  void* const to_means = means.data();
  for (std::int64_t block = first; block < last; ++block) {
    if (is_complete(part.first_block + block)) continue;
    const ElementRange elements = elements_of(part, block);
    const std::int64_t offset = elements.begin * size;
    if (averages) {
      for (std::size_t rank = 0; rank < from.size(); ++rank) {
        from[rank] = part.gradients[rank] + offset;
      }
      reduce(from, {&to_means, 1}, elements.count, type, ReduceOp::mean, scale);
    }
    std::byte* to = log.data();
    for_each_piece(arrays, elements, [&](const std::byte* old, std::size_t bytes) {
      std::memcpy(to, old, bytes);
      to += bytes;
    });
    in_this_order();
    log.next_block.store(part.first_block + block + 1, std::memory_order_relaxed);
    in_this_order();
    update(elements.begin, elements.end(), averages ? means.data() : own + offset);
    in_this_order();
    complete_[part.first_block + block].store(static_cast<std::uint32_t>(update_),
                                              std::memory_order_relaxed);
    in_this_order();
    log.next_block.store(0, std::memory_order_relaxed);
    in_this_order();
    if (averages)
      std::memcpy(own + offset, to_means, static_cast<std::size_t>(elements.count * size));
  }
}

void UpdateLog::restore_blocks() {
  for (std::int64_t index = 0; index < group_.size() * slots_; ++index) {
    Slot& log = slot(index);
    const std::int64_t block = log.next_block.load(std::memory_order_relaxed) - 1;
    if (block < 0) continue;
    const Part* part = nullptr;
    for (const std::vector<Part>& parts : parts_) {
      for (const Part& other : parts) {
        if (other.first_block <= block) part = &other;
      }
    }
    if (!is_complete(block)) {
      const std::byte* from = log.data();
      for_each_piece(arrays_of(*part), elements_of(*part, block - part->first_block),
                     [&](std::byte* to, std::size_t bytes) {
                       std::memcpy(to, from, bytes);
                       from += bytes;
                     });
      in_this_order();
    }
    log.next_block.store(0, std::memory_order_relaxed);
  }
}

}  // namespace lockstep::optim
