// SPDX-License-Identifier: BSD-3-Clause
// Where a kernel keeps the old contents of the few elements that it is changing, in memory that
// outlives the process: a kill between any two instructions leaves each element new, old, or in the
// log. Of a pass over memory that is larger than the caches, this costs a few percent, since the
// elements are in registers and the first cache anyway.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace lockstep::optim {

// Elements that are in the log at a time.
inline constexpr std::int64_t kLogged = 64;

// Elements are logged in chunks, in two buffers by turns. Positions count chunks; the log has that
// of the chunk that is being changed. Chunks before it, of the same range, are new.
class UndoLog {
 public:
  // `begin` is the first element of the range, and has the position `first`.
  UndoLog(std::byte* buffers, std::int64_t buffer_bytes, std::atomic<std::int64_t>& position,
          std::int64_t begin, std::int64_t first)
      : buffers_(buffers),
        buffer_bytes_(buffer_bytes),
        position_(position),
        begin_(begin),
        first_(first) {}

  // Copies the elements from `element` on of each array, kLogged of them or `count`. They may be
  // changed then.
  template <class... Arrays>
  [[gnu::always_inline]] void hold(std::int64_t element, std::int64_t count,
                                   const Arrays*... arrays) const {
    const std::int64_t position = first_ + (element - begin_) / kLogged;
    std::byte* to = buffer(position);
    const auto copy = [&]<class Element>(const Element* array) {
      if (array == nullptr) return;
      if (count == kLogged) {
        copy_chunk<kLogged * sizeof(Element)>(to, array + element);
      } else {
        std::memcpy(to, array + element, static_cast<std::size_t>(count) * sizeof(Element));
      }
      to += count * static_cast<std::int64_t>(sizeof(Element));
    };
    (copy(arrays), ...);
    // A process that is killed ends between two instructions, so only their order matters.
    std::atomic_signal_fence(std::memory_order_seq_cst);
    position_.store(position, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }

  std::byte* buffer(std::int64_t position) const { return buffers_ + position % 2 * buffer_bytes_; }

 private:
  // Without a call: the compiler makes one of a memcpy of this size.
  template <std::size_t kBytes>
  [[gnu::always_inline]] static void copy_chunk(std::byte* to, const void* from) {
    using Vector [[gnu::vector_size(32), gnu::aligned(1), gnu::may_alias]] = char;
    auto* const pieces = reinterpret_cast<Vector*>(to);
#pragma GCC unroll 16
    for (std::size_t i = 0; i < kBytes / sizeof(Vector); ++i) {
      pieces[i] = static_cast<const Vector*>(from)[i];
    }
  }

  std::byte* buffers_;
  std::int64_t buffer_bytes_;
  std::atomic<std::int64_t>& position_;
  std::int64_t begin_;
  std::int64_t first_;
};

// Calls update(begin, end) for all elements; with a log, hold(begin, count) comes before.
template <class Hold, class Update>
[[gnu::always_inline]] inline void update_logged(const UndoLog* log, std::int64_t begin,
                                                 std::int64_t end, const Hold& hold,
                                                 const Update& update) {
  if (log == nullptr) return update(begin, end);
  for (; end - begin >= kLogged; begin += kLogged) {
    hold(begin, kLogged);
    update(begin, begin + kLogged);
  }
  if (begin == end) return;
  hold(begin, end - begin);
  update(begin, end);
}

}  // namespace lockstep::optim
