// SPDX-License-Identifier: BSD-3-Clause
// Lays the log out in mapped memory, updates blocks, and restores chunks.
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

#include "lockstep/optim/kernels/element_types.h"
#include "lockstep/parallel/one_copy.h"
#include "lockstep/tensor/kernels/reduce.h"
#include "lockstep/tensor/reduce_op.h"

namespace lockstep::optim {
namespace {

constexpr std::int64_t kLogAlignment = 64;  // in bytes, a cache line
constexpr std::int64_t kMaxElementSize = 8;

constexpr std::int64_t kChunksOfBlock = kBlock / kLogged;  // of a block

std::int64_t whole_lines(std::int64_t bytes) {
  return (bytes + kLogAlignment - 1) / kLogAlignment * kLogAlignment;
}

std::int64_t blocks_in(ElementRange range) {
  return (range.count + kBlock - 1) / kBlock;
}

at::TensorOptions state_options(const at::Tensor& parameter) {
  return at::TensorOptions().dtype(state_type(parameter.scalar_type())).device(at::kCPU);
}

// Stores before it precede stores after it, whenever the process is killed.
void in_this_order() {
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

}  // namespace

// The log of one thread.
struct UpdateLog::Slot {
  // Of the chunk that is in the log: one more than its number over all blocks, or 0 for none.
  alignas(kLogAlignment) std::atomic<std::int64_t> position;
  std::int64_t kinds;  // of tensors of the state that are in the log, after the values

  std::byte* buffers() { return reinterpret_cast<std::byte*>(this) + sizeof(Slot); }
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
        blocks += blocks_in(part.range);
      }
    }
  }

  const at::Tensor threads = at::full({1}, at::get_num_threads(), at::kLong);
  group.all_reduce(threads, ReduceOp::max).wait();
  slots_ = threads.item<std::int64_t>();
  buffer_bytes_ = whole_lines(kLogged * element_bytes);
  slot_bytes_ = std::int64_t{sizeof(Slot)} + 2 * buffer_bytes_;
  const std::int64_t begun_bytes = whole_lines(group.size() * std::int64_t{sizeof *begun_});
  const std::int64_t note_bytes =
      whole_lines(2 * static_cast<std::int64_t>(flat.parameters() * sizeof(Note)));
  const std::int64_t progress_bytes = whole_lines(blocks * std::int64_t{sizeof *progress_});
  memory_ = group.common_memory(
      {begun_bytes + note_bytes + progress_bytes + group.size() * slots_ * slot_bytes_},
      at::TensorOptions().dtype(at::kByte).device(at::kCPU));
  auto* const memory = static_cast<std::byte*>(memory_.data_ptr());
  begun_ = reinterpret_cast<std::atomic<std::int64_t>*>(memory);
  notes_ = reinterpret_cast<Note*>(memory + begun_bytes);
  progress_ = reinterpret_cast<std::atomic<std::int64_t>*>(memory + begun_bytes + note_bytes);
  first_slot_ = memory + begun_bytes + note_bytes + progress_bytes;
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

// Chunks of the block that are new in this update; kChunksOfBlock if the whole block is.
std::int64_t UpdateLog::new_chunks(std::int64_t block) const {
  const std::int64_t progress = progress_[block].load(std::memory_order_relaxed);
  return progress / (kChunksOfBlock + 1) == update_ ? progress % (kChunksOfBlock + 1) : 0;
}

void UpdateLog::set_new_chunks(std::int64_t block, std::int64_t chunks) {
  progress_[block].store(update_ * (kChunksOfBlock + 1) + chunks, std::memory_order_relaxed);
}

UpdateLog::Slot& UpdateLog::slot(std::int64_t index) const {
  return *reinterpret_cast<Slot*>(first_slot_ + index * slot_bytes_);
}

void UpdateLog::update(const Part& part, bool averages, int kinds, UpdateBlock update) {
  const std::int64_t blocks = blocks_in(part.range);
  const std::int64_t worth = (part.range.count + kGrain - 1) / kGrain;
  const std::int64_t tasks = std::min(worth, slots_);
  at::parallel_for(0, tasks, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t task = first; task < last; ++task) {
      Slot& own = slot(group_.rank() * slots_ + task);
      own.kinds = kinds;
      in_this_order();
      update_blocks(part, blocks * task / tasks, blocks * (task + 1) / tasks, own, averages,
                    update);
      in_this_order();
      own.position.store(0, std::memory_order_relaxed);
      in_this_order();
    }
  });
}

// In one thread.
void UpdateLog::update_blocks(const Part& part, std::int64_t first, std::int64_t last, Slot& slot,
                              bool averages, UpdateBlock update) {
  const at::ScalarType type = part.values.scalar_type();
  const std::int64_t size = part.values.element_size();
  const double scale = scale_over(static_cast<int>(part.gradients.size()), ReduceOp::mean, 1);
  std::vector<const void*> from(part.gradients.size());
  // Means do not replace gradients yet, which are needed if the block is computed again.
  alignas(kLogAlignment) std::array<std::byte, kBlock * kMaxElementSize> means;
  void* const to_means = means.data();
  for (std::int64_t block = first; block < last; ++block) {
    const std::int64_t number = part.first_block + block;
    const std::int64_t chunks = new_chunks(number);
    if (chunks == kChunksOfBlock) continue;
    const std::int64_t begin = block * kBlock + chunks * kLogged;
    const std::int64_t end = std::min((block + 1) * kBlock, part.range.count);
    std::byte* const own = part.gradients[static_cast<std::size_t>(part.owner)] + begin * size;
    if (averages) {
      for (std::size_t rank = 0; rank < from.size(); ++rank) {
        from[rank] = part.gradients[rank] + begin * size;
      }
      reduce(from, {&to_means, 1}, end - begin, type, ReduceOp::mean, scale);
    }
    const UndoLog log(slot.buffers(), buffer_bytes_, slot.position, begin,
                      number * kChunksOfBlock + chunks + 1);
    update(begin, end, averages ? means.data() : own, &log);
    in_this_order();
    set_new_chunks(number, kChunksOfBlock);
    in_this_order();
    if (averages) std::memcpy(own, to_means, static_cast<std::size_t>((end - begin) * size));
  }
}

bool UpdateLog::is_complete(const Part& part) const {
  for (std::int64_t block = 0; block < blocks_in(part.range); ++block) {
    if (new_chunks(part.first_block + block) != kChunksOfBlock) return false;
  }
  return true;
}

void UpdateLog::restore_blocks() {
  for (std::int64_t index = 0; index < group_.size() * slots_; ++index) {
    Slot& own = slot(index);
    const std::int64_t position = own.position.load(std::memory_order_relaxed);
    if (position == 0) continue;
    const std::int64_t number = (position - 1) / kChunksOfBlock;
    if (new_chunks(number) != kChunksOfBlock) restore_chunk(own, position);
    own.position.store(0, std::memory_order_relaxed);
  }
}

// The chunks of the block before this one are new.
void UpdateLog::restore_chunk(Slot& slot, std::int64_t position) {
  const std::int64_t number = (position - 1) / kChunksOfBlock;
  const std::int64_t chunk = (position - 1) % kChunksOfBlock;
  const Part* part = nullptr;
  for (const std::vector<Part>& parts : parts_) {
    for (const Part& other : parts) {
      if (other.first_block <= number) part = &other;
    }
  }
  const std::int64_t begin = (number - part->first_block) * kBlock + chunk * kLogged;
  const std::int64_t count = std::min(kLogged, part->range.count - begin);
  const std::byte* from = slot.buffers() + position % 2 * buffer_bytes_;
  const auto restore = [&](const at::Tensor& tensor) {
    const std::int64_t size = tensor.element_size();
    std::memcpy(static_cast<std::byte*>(tensor.data_ptr()) + begin * size, from,
                static_cast<std::size_t>(count * size));
    from += count * size;
  };
  restore(part->values);
  for (std::int64_t kind = 0; kind < slot.kinds; ++kind) {
    restore(part->state[static_cast<std::size_t>(kind)]);
  }
  in_this_order();
  set_new_chunks(number, chunk);
  in_this_order();
}

}  // namespace lockstep::optim
