// SPDX-License-Identifier: BSD-3-Clause
// Times MPI_Allreduce in place, as `lockstep bench all-reduce` times ours.
//   mpirun -n 2 mpi_all_reduce BYTES... [--seconds FOR-EACH-SIZE]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

#include <mpi.h>
#include <sched.h>

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Pins each rank to a core of its own, as `lockstep run` does.
void pin(int rank, int ranks) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < ranks) return;
  int core = 0;
  for (int passed = 0;; ++core) {
    if (CPU_ISSET(core, &allowed) && passed++ == rank) break;
  }
  cpu_set_t own;
  CPU_ZERO(&own);
  CPU_SET(core, &own);
  sched_setaffinity(0, sizeof own, &own);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class AllReduce {
 public:
  AllReduce(int rank, int ranks, long bytes)
      : ranks_(ranks), original_(bytes / sizeof(float)), buffer_(original_.size()) {
    for (std::size_t i = 0; i < original_.size(); ++i) original_[i] = pattern(i) + rank + 1;
  }

  double turn() {
    std::copy(original_.begin(), original_.end(), buffer_.begin());
    MPI_Barrier(MPI_COMM_WORLD);
    const auto start = Clock::now();
    MPI_Allreduce(MPI_IN_PLACE, buffer_.data(), static_cast<int>(buffer_.size()), MPI_FLOAT,
                  MPI_SUM, MPI_COMM_WORLD);
    return seconds_since(start);
  }

  int agreed_repetitions(double seconds) {
    std::vector<double> warm_up;
    for (int i = 0; i < 5; ++i) {
      const auto start = Clock::now();
      turn();
      warm_up.push_back(seconds_since(start));
    }
    int repetitions = static_cast<int>(std::clamp(seconds / median(warm_up), 5.0, 5000.0));
    MPI_Bcast(&repetitions, 1, MPI_INT, 0, MPI_COMM_WORLD);
    return repetitions;
  }

  long wrong() const {
    long wrong = 0;
    for (std::size_t i = 0; i < buffer_.size(); ++i) {
      if (buffer_[i] != pattern(i) * ranks_ + ranks_ * (ranks_ + 1) / 2) ++wrong;
    }
    return wrong;
  }

 private:
  static float pattern(std::size_t i) { return static_cast<float>(i % 7); }

  int ranks_;
  std::vector<float> original_;
  std::vector<float> buffer_;
};

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  int ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  double seconds = 0.5;
  std::vector<long> sizes;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--seconds" && i + 1 < argc) {
      seconds = std::atof(argv[++i]);
    } else {
      sizes.push_back(std::atol(argv[i]));
    }
  }
  pin(rank, ranks);
  if (rank == 0) std::printf("{\"rows\": [");
  const char* separator = "";
  for (const long bytes : sizes) {
    AllReduce all_reduce(rank, ranks, bytes);
    std::vector<double> times(all_reduce.agreed_repetitions(seconds));
    for (double& time : times) time = all_reduce.turn();
    MPI_Allreduce(MPI_IN_PLACE, times.data(), static_cast<int>(times.size()), MPI_DOUBLE, MPI_MAX,
                  MPI_COMM_WORLD);
    if (rank == 0) {
      std::printf(
          "%s{\"bytes\": %ld, \"time_us_min\": %.3f, \"time_us_median\": %.3f, "
          "\"wrong\": %ld}",
          separator, bytes, *std::min_element(times.begin(), times.end()) * 1e6,
          median(times) * 1e6, all_reduce.wrong());
    }
    separator = ", ";
  }
  if (rank == 0) std::printf("]}\n");
  MPI_Finalize();
}
