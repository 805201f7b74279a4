// SPDX-License-Identifier: BSD-3-Clause
// Public. Runs a function as several local ranks. Follows torch.multiprocessing.start_processes,
// and returns the ranks' results.
#pragma once

#include <chrono>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <typeinfo>
#include <vector>

#include <sys/types.h>

#include "lockstep/core/error.h"
#include "lockstep/core/plain_object.h"
#include "lockstep/launch/elastic_options.h"
#include "lockstep/launch/rank_reports.h"

namespace at {
class Tensor;
}

namespace lockstep {

namespace spawn_detail {

// Specialized for each type that a rank can return.
template <class T>
struct ResultBytes;

// join packs texts into one; split unpacks them.
std::string join(const std::vector<std::string>& texts);
std::vector<std::string> split(std::string_view joined);

// BackendError: the bytes are not a result of this type.
[[noreturn]] void refuse_bytes(std::size_t bytes, std::string_view expected);

}  // namespace spawn_detail

// A type that the function of spawn() can return: a PlainObject, std::string, at::Tensor, or a
// std::vector of these.
template <class T>
concept SpawnResult = requires {
  spawn_detail::ResultBytes<T>::unpack;
};

namespace spawn_detail {

template <>
struct ResultBytes<std::string> {
  static std::string pack(std::string text) { return text; }
  static std::string unpack(std::string bytes) { return bytes; }
};

template <PlainObject T>
struct ResultBytes<T> {
  static std::string pack(const T& object) {
    return std::string(reinterpret_cast<const char*>(&object), sizeof object);
  }
  static T unpack(const std::string& bytes) {
    if (bytes.size() != sizeof(T)) refuse_bytes(bytes.size(), std::to_string(sizeof(T)));
    T object;
    std::memcpy(&object, bytes.data(), sizeof object);
    return object;
  }
};

// Its functions are compiled with libtorch, so that this header does not need it.
template <>
struct ResultBytes<at::Tensor> {
  static std::string pack(const at::Tensor& tensor);
  static at::Tensor unpack(const std::string& bytes);
};

template <SpawnResult T>
struct ResultBytes<std::vector<T>> {
  static std::string pack(const std::vector<T>& list) {
    if constexpr (std::is_same_v<T, bool>) {
      return std::string(list.begin(), list.end());
    } else if constexpr (PlainObject<T>) {
      return std::string(reinterpret_cast<const char*>(list.data()), list.size() * sizeof(T));
    } else {
      std::vector<std::string> elements;
      for (const T& element : list) elements.push_back(ResultBytes<T>::pack(element));
      return join(elements);
    }
  }
  static std::vector<T> unpack(const std::string& bytes) {
    if constexpr (std::is_same_v<T, bool>) {
      return std::vector<bool>(bytes.begin(), bytes.end());
    } else if constexpr (PlainObject<T>) {
      if (bytes.size() % sizeof(T) != 0) {
        refuse_bytes(bytes.size(), "a multiple of " + std::to_string(sizeof(T)));
      }
      std::vector<T> list(bytes.size() / sizeof(T));
      if (!bytes.empty()) std::memcpy(list.data(), bytes.data(), bytes.size());
      return list;
    } else {
      std::vector<T> list;
      for (std::string& element : split(bytes)) {
        list.push_back(ResultBytes<T>::unpack(std::move(element)));
      }
      return list;
    }
  }
};

}  // namespace spawn_detail

// How ranks are started; the names are PyTorch's.
enum class StartMethod {
  // fork if that is safe, else spawn.
  automatic,
  // Forks ranks from this process, within a millisecond. Possible only before libtorch has started
  // threads and before a GPU has been used.
  fork,
  // Each rank runs the program again, from the start of main with the same arguments, up to this
  // call of spawn, where it calls the function. Each rank therefore repeats all that the program
  // does before the call, such as printing, writing files, listening on ports, taking locks and
  // joining groups. It does so with the original environment, folder and cores. Skip long work if
  // is_rank(). The rank's standard input is empty. The function captures the rank's variables, not
  // this process's. The n-th call in this process is the n-th in the rank; earlier calls start no
  // ranks there, and return or throw what they did here.
  spawn,
};

struct SpawnOptions {
  StartMethod start_method = StartMethod::automatic;
  // How long a rank that runs the program again may take to reach the call; a slower rank is ended
  // and counts as failed. Default: a minute plus ten times what this process took.
  std::optional<std::chrono::milliseconds> start_timeout{};
  // OMP_NUM_THREADS and OPENBLAS_NUM_THREADS of each rank. If empty, each rank is limited to its
  // share of the cores, unless OMP_NUM_THREADS is set.
  std::optional<int> threads{};
  // If given, the job goes on without ranks that it loses, and replaces them, as `lockstep run
  // --elastic` does: the function trains with a Trainer with microbatches (docs/elastic.md). It is
  // called with the number of a member, which is the rank of those that the job starts with; a
  // replacement gets the next free number, and lines and log files have these numbers. A UsageError
  // that leaves the function ends the job, since a replacement would make the same mistake.
  std::optional<ElasticOptions> elastic{};
  // Prefixes each rank's lines with "[rank 2] ".
  bool prefix = true;
  // Receives every line instead of the standard streams. Must not throw or block.
  LineSink on_line{};
  // A line below the ranks' output on a terminal; not with on_line. Without it, a line without an
  // end, such as a progress bar, appears within half a second.
  std::optional<StatusLine> status{};
  // A folder for rank_0.log and so on, with both streams; created if missing.
  std::string log_dir{};
  // Time from SIGTERM to SIGKILL after a rank has failed, and for processes that ranks leave
  // behind.
  std::chrono::milliseconds stop_grace{500};
  // Time from passing on the signal that told this process to stop, until SIGKILL.
  std::chrono::milliseconds interrupt_grace{10000};
};

// A rank failed, and the others were ended. The message names the rank and the cause: its
// exception's message, or how its process ended and its last lines of output. In an elastic job,
// this is the rank without which the job could not go on; the message also has a line for each rank
// that was lost before, beginning with the first one, ten at most.
class RankFailed : public ErrorType<RankFailed> {
 public:
  RankFailed(RankFailure failure, const std::string& message)
      : ErrorType(message), failure_(std::move(failure)) {}
  const RankFailure& failure() const { return failure_; }

 private:
  RankFailure failure_;
};

namespace spawn_detail {

// TORCH_WARN. Compiled with libtorch, so that this header does not need it.
void warn(const std::string& warning);

// Returns the results of the ranks' bodies, in rank order. The function's type distinguishes calls.
std::vector<std::string> run(int ranks, const std::function<std::string(int)>& body,
                             const std::type_info& function, const SpawnOptions& options,
                             const std::function<void(const std::string&)>& on_warning);

}  // namespace spawn_detail

// Whether this process is a rank: true from the start of main with StartMethod::spawn, and inside
// the function with fork.
bool is_rank();

// Calls fn(rank) in each of `ranks` new processes and blocks until all have ended. They have the
// environment variables of `lockstep run`, so that init_process_group() joins them. A rank ends
// when fn returns; destructors of static objects do not run in it. Processes that ranks leave
// behind are ended with them, by the ranks' parent.
//
// Returns what fn returned, by rank, as a std::vector; nothing if fn returns void. fn may return a
// SpawnResult. An elastic job returns the results of the ranks with which the training ended, which
// may be fewer or more than `ranks`; ranks that were lost and could be replaced are only told to
// ElasticOptions::on_event. Tensors come back as contiguous copies on the CPU with the same type,
// sizes and values, or undefined; they require no gradient and share no memory with each other. A
// rank's result may have nearly 64 MiB, and all together nearly 256 MiB: save larger ones to a file
// in fn. This process keeps its own copy of every call's results until it ends, whatever the start
// method, since a rank of a later call may run the program again and then gets them: many calls
// with large results take up memory.
//
// RankFailed for the rank that failed first, such as one with too large a result or a sparse
// tensor. BackendError, after all have ended, if their output could not be written to standard
// output or a log file. UsageError if the start method is impossible: fork if this process has
// started threads, since libtorch would hang in the ranks; spawn inside a rank, or in a process
// that the program has forked. TORCH_WARN, once, if there are more ranks than cores.
//
// SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on to the ranks and, once the ranks have ended,
// raised here; then Error is thrown. SIGTSTP and SIGCONT suspend and continue the ranks with this
// process. SIGUSR1, SIGUSR2, SIGALRM, SIGXCPU and their like are passed on, and the ranks continue.
// These and SIGTSTP and SIGCONT stay with this program if it handles or ignores them; to handle one
// in each rank, do so in fn. Call spawn only from the main thread.
template <class Function>
auto spawn(int ranks, Function&& fn, const SpawnOptions& options = {}) {
  using Result = std::invoke_result_t<Function&, int>;
  if constexpr (std::is_void_v<Result>) {
    const auto body = [&](int rank) {
      fn(rank);
      return std::string();
    };
    spawn_detail::run(ranks, body, typeid(Function), options, spawn_detail::warn);
  } else {
    using Value = std::remove_cvref_t<Result>;
    // Not the concept itself, or compilers explain at length why it is not satisfied.
    constexpr bool kCanReturn = SpawnResult<Value>;
    static_assert(kCanReturn,
                  "the function of spawn() returns void, std::string, at::Tensor, a trivially "
                  "copyable type without pointers (numbers, enums, structs, std::array), or a "
                  "std::vector of one of these");
    std::vector<Value> results;
    if constexpr (kCanReturn) {
      using Bytes = spawn_detail::ResultBytes<Value>;
      const auto body = [&](int rank) { return Bytes::pack(fn(rank)); };
      for (std::string& bytes :
           spawn_detail::run(ranks, body, typeid(Function), options, spawn_detail::warn)) {
        results.push_back(Bytes::unpack(std::move(bytes)));
      }
    }
    return results;
  }
}

}  // namespace lockstep
