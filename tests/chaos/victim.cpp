// SPDX-License-Identifier: BSD-3-Clause
// The program into which scripts/chaos injects faults: trains a small network with DDP until one of
// its ranks does what it was told to do. Like most programs it catches exceptions in main and
// returns 1.
//   chaos_victim KEY=VALUE...    see Plan for the keys
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "support/die_at_call.h"
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <unistd.h>

#include "lockstep/lockstep.h"

namespace {

using namespace std::chrono_literals;

struct Plan {
  std::string backend = "auto";
  std::string fault = "none";
  int rank = 1;  // that commits it
  int step = 20;
  int steps = std::numeric_limits<int>::max();
  std::string until = {};  // the file whose coming ends the training, if given
  int spawn = 0;           // start so many ranks; 0: a launcher has started this one
  double timeout = 5;
};

Plan parse(int argc, char** argv) {
  Plan plan;
  const std::map<std::string, std::function<void(const std::string&)>> keys{
      {"backend", [&](const std::string& value) { plan.backend = value; }},
      {"fault", [&](const std::string& value) { plan.fault = value; }},
      {"rank", [&](const std::string& value) { plan.rank = std::stoi(value); }},
      {"step", [&](const std::string& value) { plan.step = std::stoi(value); }},
      {"steps", [&](const std::string& value) { plan.steps = std::stoi(value); }},
      {"until", [&](const std::string& value) { plan.until = value; }},
      {"spawn", [&](const std::string& value) { plan.spawn = std::stoi(value); }},
      {"timeout", [&](const std::string& value) { plan.timeout = std::stod(value); }},
  };
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const auto equals = argument.find('=');
    const auto key = keys.find(argument.substr(0, equals));
    if (key == keys.end() || equals == std::string::npos) {
      throw std::invalid_argument("what is " + argument + "?");
    }
    key->second(argument.substr(equals + 1));
  }
  return plan;
}

// On the clock that time.monotonic() of scripts/chaos reads.
void say_that_it_comes() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  std::fprintf(stderr, "fault at %.6f\n", std::chrono::duration<double>(now).count());
}

struct SlowDestructor {
  ~SlowDestructor() { std::this_thread::sleep_for(300ms); }
};

void take_all_memory() {
  std::vector<std::vector<char>> taken;
  while (true) taken.emplace_back(16 << 20, 'x');
}

// Commits a fault that needs nothing of the training; returns for others.
void commit(const std::string& fault) {
  say_that_it_comes();
  if (fault == "throw") throw std::runtime_error("the data of this rank are damaged");
  if (fault == "exit_3") std::exit(3);
  if (fault == "exit_0") std::exit(0);
  if (fault == "_exit_0") ::_exit(0);
  if (fault == "segv") std::raise(SIGSEGV);
  if (fault == "abort") std::abort();
  if (fault == "hang") std::this_thread::sleep_for(1h);
  if (fault == "memory") take_all_memory();
}

class Victim {
 public:
  explicit Victim(const Plan& plan) : plan_(plan) {}

  void train() {
    group_ = lockstep::init_process_group(
        {.backend = plan_.backend,
         .timeout = std::chrono::milliseconds(static_cast<int>(plan_.timeout * 1000))});
    std::printf("rank %d is process %d\n", group_->rank(), ::getpid());
    std::fflush(stdout);
    guilty_ = group_->rank() == plan_.rank;
    torch::manual_seed(0);
    torch::nn::Sequential net(torch::nn::Linear(64, 256), torch::nn::ReLU(),
                              torch::nn::Linear(256, 8));
    torch::optim::SGD optimizer(net->parameters(), 1e-3);
    lockstep::DistributedDataParallel model(net, group_, {.check_finite = plan_.fault == "nan"});
    for (int step = 0; step < plan_.steps && !is_over(); ++step) {
      const bool now = guilty_ && step == plan_.step;
      if (now && plan_.fault == "fewer_batches") {
        say_that_it_comes();
        break;
      }
      if (plan_.fault == "flip" && step == plan_.step + 1) lockstep::check_in_sync(model);
      optimizer.zero_grad();
      auto loss = model->forward(inputs(now)).square().mean();
      if (now && plan_.fault == "throw_in_backward") throw_in_backward(loss);
      if (now && plan_.fault == "throw_slowly") {
        const SlowDestructor slow;
        commit("throw");
      }
      if (now && plan_.fault == "other_call") make_other_call();
      if (now) commit(plan_.fault);
      loss.backward();
      optimizer.step();
      if (now && plan_.fault == "flip") flip(net->parameters().front());
      if (step == 1 && group_->rank() == 0) {
        std::puts("training");
        std::fflush(stdout);
      }
    }
  }

 private:
  // As rank 0 sees it, so that all ranks make the same steps.
  bool is_over() const {
    if (plan_.until.empty()) return false;
    const at::Tensor over = torch::full({1}, std::filesystem::exists(plan_.until) ? 1.0 : 0.0);
    group_->broadcast(over, 0).wait();
    return over.item<double>() != 0;
  }

  at::Tensor inputs(bool now) const {
    at::Tensor inputs = torch::randn({16, 64});
    if (now && plan_.fault == "nan") inputs[0][0] = std::numeric_limits<float>::quiet_NaN();
    return inputs;
  }

  static void throw_in_backward(const at::Tensor& loss) {
    loss.register_hook([](at::Tensor) -> at::Tensor {
      say_that_it_comes();
      throw std::runtime_error("the data of this rank are damaged");
    });
  }

  void make_other_call() {
    say_that_it_comes();
    group_->broadcast(torch::zeros({7}), 0).wait();
  }

  static void flip(at::Tensor parameter) {
    say_that_it_comes();
    const torch::NoGradGuard no_grad;
    parameter.view(-1)[7].neg_();
  }

  Plan plan_;
  std::shared_ptr<lockstep::ProcessGroup> group_;
  bool guilty_ = false;
};

void train(const Plan& plan) {
  const char* rank = std::getenv("RANK");  // mpirun sets none
  if (rank != nullptr && rank == std::to_string(plan.rank)) {
    if (plan.fault == "throw_before_joining") commit("throw");
    if (plan.fault == "die_while_joining") {
      lockstep::testing::die_at_call(plan.step, say_that_it_comes);
    }
  }
  Victim(plan).train();
}

}  // namespace

int main(int argc, char** argv) try {
  const Plan plan = parse(argc, argv);
  if (plan.spawn == 0) {
    train(plan);
  } else {
    lockstep::spawn(plan.spawn, [&](int) { train(plan); });
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "victim: %s\n", error.what());
  return 1;
}
