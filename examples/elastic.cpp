// SPDX-License-Identifier: BSD-3-Clause
// Trains through the loss of ranks, in a loop of its own. A Trainer with .microbatches does all of
// this by itself (docs/elastic.md); this is for programs that cannot use one.
//
//   lockstep run -n 3 --elastic 2:3 elastic
//   elastic                                   one process, which ends with the same hash
// Kill any rank meanwhile: the others go on, and a replacement joins them.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <vector>

#include <lockstep/lockstep.h>
#include <torch/torch.h>

constexpr int kMicrobatches = 6;
constexpr std::int64_t kSize = 32;  // samples of a microbatch
constexpr std::int64_t kSteps = 600;

struct Training {
  torch::nn::Sequential net{torch::nn::Flatten(), torch::nn::Linear(784, 64), torch::nn::ReLU(),
                            torch::nn::Linear(64, 10)};
  torch::optim::SGD optimizer{net->parameters(), 0.1};
  torch::Tensor pixels, labels;
  std::int64_t steps = -1;  // completed; -1 until this rank has the weights of the others
};

// The ranks that train together, and what depends on their number.
struct Ranks {
  std::shared_ptr<lockstep::ProcessGroup> group;
  lockstep::SumTree tree{kMicrobatches};
  std::vector<lockstep::LeafRange> runs = lockstep::even_runs(kMicrobatches, group->size());
};

// Gives all ranks the weights of the one that has come furthest. A rank that was lost in a step may
// have been the only one that completed it; then the others do the step again.
void align(Training& training, lockstep::ProcessGroup& group) {
  const auto steps = lockstep::all_gather_object(training.steps, group);
  int furthest = 0;
  for (int rank = 1; rank < group.size(); ++rank) {
    if (steps[rank] > steps[furthest]) furthest = rank;
  }
  torch::NoGradGuard no_grad;
  group.broadcast(training.net->parameters(), furthest).wait();
  training.steps = steps[furthest];
}

// Returns whether a rank wants to leave after the step, since the job's ranks change.
bool train_step(Training& training, const Ranks& ranks, bool wants_change) {
  const auto parameters = training.net->parameters();
  const lockstep::LeafRange run = ranks.runs[ranks.group->rank()];
  std::int64_t elements = 1;  // the last one says who wants to leave
  for (const auto& parameter : parameters) elements += parameter.numel();
  lockstep::TreeSum sum(ranks.tree, elements, torch::kFloat);
  sum.begin(run);
  for (std::int64_t i = run.begin; i < run.end; ++i) {
    // The samples of a microbatch depend on its number, not on the rank.
    const auto begin = (training.steps * kMicrobatches + i) * kSize % 59000;
    const auto output = training.net->forward(training.pixels.narrow(0, begin, kSize));
    training.optimizer.zero_grad();
    torch::cross_entropy_loss(output, training.labels.narrow(0, begin, kSize)).backward();
    std::vector<torch::Tensor> parts;
    for (const auto& parameter : parameters) parts.push_back(parameter.grad().flatten());
    parts.push_back(torch::full({1}, wants_change ? 1.0 : 0.0));
    const auto gradient = torch::cat(parts);
    sum.add(
        [&](const torch::Tensor& to, bool adds) { adds ? to.add_(gradient) : to.copy_(gradient); });
  }
  const auto mean = lockstep::tree_all_reduce(sum.partials(), ranks.tree, ranks.runs, *ranks.group,
                                              1.0 / kMicrobatches);
  // From here on no rank waits for another: the step is complete on each that lives.
  std::int64_t begin = 0;
  for (const auto& parameter : parameters) {
    const auto part = mean.narrow(0, begin, parameter.numel());
    parameter.mutable_grad() = part.view(parameter.sizes()).clone();  // not a view: zero_grad()
    begin += parameter.numel();
  }
  training.optimizer.step();
  ++training.steps;
  return mean[-1].item<float>() > 0;
}

int main() {
  torch::manual_seed(0);
  torch::set_num_threads(1);  // with several, sums may depend on their number
  const auto job = lockstep::ElasticJob::of_this_process();  // null without --elastic
  Ranks ranks{lockstep::init_process_group()};
  lockstep::MnistDataset images("/usr/share/datasets/fashion-mnist");
  Training training;
  training.pixels = images.images().to(torch::kFloat) / 255;
  training.labels = images.labels();
  bool changes = job && job->in_lobby();  // a newcomer is alone until it has joined the others
  int generation = changes ? -1 : ranks.group->generation();
  if (!changes) training.steps = 0;
  while (changes || training.steps < kSteps) {
    try {
      if (changes) {
        job->join();
        const auto timeout = lockstep::Deadline::after(ranks.group->timeout());
        const auto next = job->wait_for_generation(generation, timeout);
        if (!next) return 0;  // fewer ranks are wanted (lockstep resize)
        generation = next->number;
        ranks = Ranks{lockstep::init_process_group(*job, *next)};
        align(training, *ranks.group);
        std::printf("generation %d: rank %d of %d after step %d\n", generation, ranks.group->rank(),
                    ranks.group->size(), static_cast<int>(training.steps));
        changes = false;
        continue;  // all steps may have been made
      }
      if (job) job->note_step(training.steps);
      changes = train_step(training, ranks, job && job->wants_change(generation));
    } catch (const lockstep::PeerLost& lost) {
      if (!job) throw;
      ranks.group->abort(lost.what());  // for ranks that still wait in it
      changes = true;
    }
  }
  if (job) job->note_end();
  if (ranks.group->rank() != 0) return 0;
  const auto hash = lockstep::state_sha256(*training.net, training.optimizer);
  std::printf("%d steps, SHA-256 %s\n", static_cast<int>(training.steps), hash.c_str());
}
