// SPDX-License-Identifier: BSD-3-Clause
// Tensors of any strides, in ordinary memory and in the group's.
#include "comm/conformance/conformance.h"
#include "comm/conformance/reference.h"
#include <ATen/ATen.h>
#include <fmt/format.h>

namespace lockstep::testing {
namespace {

const std::vector<std::int64_t> kShape = {6, 50, 70};
constexpr double kUntouched = 77;

// Memory for a tensor of kShape: what the tensor is a view of, and how to see the tensor in it.
struct Layout {
  std::string name;
  std::vector<std::int64_t> storage;
  std::function<at::Tensor(const at::Tensor&)> view;
};

const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all = {
      {"contiguous", {6, 50, 70}, [](const at::Tensor& t) { return t; }},
      {"transposed",
       {70, 50, 6},
       [](const at::Tensor& t) {
         return t.permute({2, 1, 0});
       }},
      {"every other column",
       {6, 50, 140},
       [](const at::Tensor& t) { return t.slice(2, 1, 140, 2); }},
      {"part of a bucket", {21003}, [](const at::Tensor& t) { return t.slice(0, 3).view(kShape); }},
      {"rows of a matrix, swapped",
       {50, 8, 70},
       [](const at::Tensor& t) { return t.slice(1, 2).transpose(0, 1); }},
  };
  return all;
}

// Which layout a rank takes, and whether it lies in the group's memory: different ones on
// different ranks, in every round.
struct Placed {
  std::string what;
  at::Tensor storage;
  at::Tensor tensor;

  Placed(Rank& rank, ProcessGroup& group, int round, at::ScalarType type = at::kFloat) {
    const auto& layout = layouts()[(rank.rank() * (1 + round / 10) + round) % layouts().size()];
    const bool shared = (rank.rank() + round / 5) % 2 == 0;
    what = fmt::format("round {}: {} in {} memory", round, layout.name,
                       shared ? "the group's" : "ordinary");
    rank.note(what);
    // A collective call: every rank asks for the same, used or not.
    std::int64_t largest = 0;
    for (const auto& each : layouts()) {
      largest = std::max(largest, c10::multiply_integers(each.storage));
    }
    at::Tensor memory = group.empty({largest}, type);
    if (!shared) memory = at::empty({largest}, type);
    storage = memory.fill_(kUntouched);
    tensor = layout.view(
        memory.slice(0, 0, c10::multiply_integers(layout.storage)).view(layout.storage));
  }

  void fill(const at::Tensor& values) { tensor.copy_(values); }

  void expect(const at::Tensor& expected) {
    expect_same_bits(tensor, expected, what);
    tensor.fill_(kUntouched);
    EXPECT_TRUE((storage == kUntouched).all().item<bool>()) << what << ": wrote beside the tensor";
  }
};

// One for each rank of the group.
struct PlacedList {
  std::vector<Placed> placed;
  std::vector<at::Tensor> tensors;

  PlacedList(Rank& rank, ProcessGroup& group, int round) {
    for (int r = 0; r < group.size(); ++r) {
      placed.emplace_back(rank, group, round + r);
      tensors.push_back(placed[r].tensor);
    }
  }

  // With what a rank has for each.
  void fill(int rank) {
    for (std::size_t r = 0; r < placed.size(); ++r) {
      placed[r].fill(input_of(rank, at::kFloat, kShape, static_cast<int>(r)));
    }
  }
};

constexpr int kRounds = 20;

TEST_P(ResultsConformance, SymmetricMemoryIsEveryRanksTensor) {
  run_in_group([this](Rank& rank, ProcessGroup& group) {
    const at::Tensor first = group.empty({1000}, at::kFloat);
    const at::Tensor tensor = group.empty({2, 500}, at::kFloat).fill_(rank.rank());
    const at::Tensor part = tensor[1];
    const auto memory = group.symmetric_memory(part);
    EXPECT_TRUE(group.symmetric_memory(at::empty({1000})).empty());
    EXPECT_EQ(memory.empty(), backend().name != "shm");
    if (memory.empty()) return;
    EXPECT_EQ(memory[rank.rank()], part.data_ptr());
    group.barrier().wait();
    for (int peer = 0; peer < group.size(); ++peer) {
      float* const values = reinterpret_cast<float*>(memory[peer]);
      EXPECT_EQ(values[499], peer);
      values[rank.rank()] = static_cast<float>(100 + rank.rank());
    }
    group.barrier().wait();
    for (int peer = 0; peer < group.size(); ++peer) {
      EXPECT_EQ(part[peer].item<float>(), 100 + peer);
    }
    EXPECT_TRUE((tensor[0] == rank.rank()).all().item<bool>());
  });
}

TEST_P(ResultsConformance, AllReduceTakesAnyStridesAndMemory) {
  run_in_group([](Rank& rank, ProcessGroup& group) {
    for (int round = 0; round < kRounds; ++round) {
      const auto inputs = inputs_of_all(group.size(), at::kFloat, kShape, round);
      Placed placed(rank, group, round);
      placed.fill(inputs[rank.rank()]);
      group.all_reduce(placed.tensor).wait();
      placed.expect(reduced(inputs));
    }
  });
}

TEST_P(ResultsConformance, AllReduceOfAListTakesAnyStridesAndMemory) {
  run_in_group([](Rank& rank, ProcessGroup& group) {
    for (int round = 0; round < kRounds; ++round) {
      std::vector<Placed> all;
      std::vector<at::Tensor> tensors;
      for (int i = 0; i < 3; ++i) {
        all.emplace_back(rank, group, round + i, i == 1 ? at::kBFloat16 : at::kFloat);
        all[i].fill(input_of(rank.rank(), all[i].tensor.scalar_type(), kShape, i));
        tensors.push_back(all[i].tensor);
      }
      group.all_reduce(tensors).wait();
      for (int i = 0; i < 3; ++i) {
        const auto type = all[i].tensor.scalar_type();
        all[i].expect(reduced(inputs_of_all(group.size(), type, kShape, i)));
      }
    }
  });
}

TEST_P(ResultsConformance, BroadcastTakesAnyStridesAndMemory) {
  run_in_group([](Rank& rank, ProcessGroup& group) {
    for (int round = 0; round < kRounds; ++round) {
      const int root = round % group.size();
      Placed placed(rank, group, round);
      if (rank.rank() == root) placed.fill(input_of(root, at::kFloat, kShape, round));
      group.broadcast(placed.tensor, root).wait();
      placed.expect(input_of(root, at::kFloat, kShape, round));
    }
  });
}

TEST_P(ResultsConformance, AllGatherTakesAnyStridesAndMemory) {
  run_in_group([](Rank& rank, ProcessGroup& group) {
    for (int round = 0; round < kRounds; ++round) {
      Placed input(rank, group, round);
      input.fill(input_of(rank.rank(), at::kFloat, kShape, round));
      PlacedList outputs(rank, group, round + 1);
      group.all_gather(outputs.tensors, input.tensor).wait();
      for (int r = 0; r < group.size(); ++r) {
        outputs.placed[r].expect(input_of(r, at::kFloat, kShape, round));
      }
    }
  });
}

TEST_P(ResultsConformance, ReduceScatterTakesAnyStridesAndMemory) {
  run_in_group([](Rank& rank, ProcessGroup& group) {
    for (int round = 0; round < kRounds; ++round) {
      Placed output(rank, group, round);
      PlacedList inputs(rank, group, round + 1);
      inputs.fill(rank.rank());
      group.reduce_scatter(output.tensor, inputs.tensors).wait();
      output.expect(reduced(inputs_of_all(group.size(), at::kFloat, kShape, rank.rank())));
    }
  });
}

TEST_P(ResultsConformance, ARingTakesAnyStridesAndMemory) {
  run_in_group([](Rank& rank, ProcessGroup& group) {
    for (int round = 0; round < kRounds; ++round) {
      const auto inputs = inputs_of_all(group.size(), at::kFloat, kShape, round);
      Placed placed(rank, group, round);
      placed.fill(inputs[rank.rank()]);
      const AllReduceOptions options{.op = ReduceOp::max, .algorithm = Algorithm::ring};
      group.all_reduce(placed.tensor, options).wait();
      placed.expect(reduced(inputs, options));
    }
  });
}

TEST_P(ResultsConformance, ReduceTakesAnyStridesAndMemory) {
  run_in_group([](Rank& rank, ProcessGroup& group) {
    for (int round = 0; round < kRounds; ++round) {
      const int root = round % group.size();
      const auto inputs = inputs_of_all(group.size(), at::kFloat, kShape, round);
      Placed placed(rank, group, round);
      placed.fill(inputs[rank.rank()]);
      group.reduce(placed.tensor, root, {.op = ReduceOp::max}).wait();
      placed.expect(rank.rank() == root ? reduced(inputs, {.op = ReduceOp::max})
                                        : inputs[rank.rank()]);
    }
  });
}

TEST_P(ResultsConformance, GatherTakesAnyStridesAndMemory) {
  run_in_group([](Rank& rank, ProcessGroup& group) {
    for (int round = 0; round < kRounds; ++round) {
      const int root = round % group.size();
      Placed input(rank, group, round);
      input.fill(input_of(rank.rank(), at::kFloat, kShape, round));
      PlacedList outputs(rank, group, round + 1);
      group.gather(rank.rank() == root ? outputs.tensors : kNoTensors, input.tensor, root).wait();
      for (int r = 0; r < group.size() && rank.rank() == root; ++r) {
        outputs.placed[r].expect(input_of(r, at::kFloat, kShape, round));
      }
    }
  });
}

TEST_P(ResultsConformance, ScatterTakesAnyStridesAndMemory) {
  run_in_group([](Rank& rank, ProcessGroup& group) {
    for (int round = 0; round < kRounds; ++round) {
      const int root = round % group.size();
      Placed output(rank, group, round);
      PlacedList inputs(rank, group, round + 1);
      inputs.fill(rank.rank());
      group.scatter(output.tensor, rank.rank() == root ? inputs.tensors : kNoTensors, root).wait();
      output.expect(input_of(root, at::kFloat, kShape, rank.rank()));
    }
  });
}

TEST_P(ResultsConformance, AllToAllTakesAnyStridesAndMemory) {
  run_in_group([](Rank& rank, ProcessGroup& group) {
    for (int round = 0; round < kRounds; ++round) {
      PlacedList inputs(rank, group, round);
      inputs.fill(rank.rank());
      PlacedList outputs(rank, group, round + 1);
      group.all_to_all(outputs.tensors, inputs.tensors).wait();
      for (int r = 0; r < group.size(); ++r) {
        outputs.placed[r].expect(input_of(r, at::kFloat, kShape, rank.rank()));
      }
    }
  });
}

TEST_P(ResultsConformance, InputsThatAreOnlyReadMayBeExpanded) {
  run_in_group([](Rank& rank, ProcessGroup& group) {
    const at::Tensor input = at::full({1, 3}, rank.rank() + 1.0).expand({400, 3});
    std::vector<at::Tensor> outputs;
    for (int r = 0; r < group.size(); ++r) outputs.push_back(at::zeros({400, 3}));
    group.all_gather(outputs, input).wait();
    for (int r = 0; r < group.size(); ++r) {
      expect_same_bits(outputs[r], at::full({400, 3}, r + 1.0), "all_gather");
    }
    const at::Tensor output = at::zeros({400, 3});
    group.reduce_scatter(output, std::vector(group.size(), input)).wait();
    expect_same_bits(output, at::full({400, 3}, group.size() * (group.size() + 1) / 2.0),
                     "reduce_scatter");
  });
}

TEST_P(ResultsConformance, AnOutputMayBeTheInput) {
  run_in_group([](Rank& rank, ProcessGroup& group) {
    for (const std::int64_t count : {5, 70001}) {
      std::vector<at::Tensor> outputs;
      for (int r = 0; r < group.size(); ++r) outputs.push_back(at::zeros({count}));
      outputs[rank.rank()].copy_(input_of(rank.rank(), at::kFloat, {count}));
      group.all_gather(outputs, outputs[rank.rank()]).wait();
      for (int r = 0; r < group.size(); ++r) {
        expect_same_bits(outputs[r], input_of(r, at::kFloat, {count}), "all_gather in place");
      }
      const at::Tensor mine = outputs[rank.rank()].clone();
      group.reduce_scatter(outputs[rank.rank()], outputs).wait();
      expect_same_bits(outputs[rank.rank()], reduced(std::vector(group.size(), mine)),
                       "reduce_scatter in place");
    }
  });
}

TEST_P(ResultsConformance, OneTensorMayBeThisRanksPartOfTheOther) {
  run_in_group([](Rank& rank, ProcessGroup& group) {
    for (const auto type : {at::kFloat, at::kHalf}) {
      for (const std::int64_t count : {5, 600'001}) {
        for (const bool shared : {true, false}) {
          const std::string what = fmt::format("{} {} in {} memory", count, c10::toString(type),
                                               shared ? "the group's" : "ordinary");
          rank.note(what);
          const std::int64_t elements = count * group.size();
          const at::Tensor all =
              shared ? group.empty({elements}, type) : at::empty({elements}, type);
          const auto part = [&](const at::Tensor& tensor) {
            return tensor.narrow(0, rank.rank() * count, count);
          };
          all.fill_(kUntouched);
          part(all).copy_(input_of(rank.rank(), type, {count}));
          group.all_gather_into_tensor(all, part(all)).wait();
          expect_same_bits(all, at::cat(inputs_of_all(group.size(), type, {count})),
                           "all_gather_into_tensor of " + what);

          const auto inputs = inputs_of_all(group.size(), type, {elements}, 1);
          all.copy_(inputs[rank.rank()]);
          group.reduce_scatter_tensor(part(all), all).wait();
          const at::Tensor expected = inputs[rank.rank()].clone();
          part(expected).copy_(part(reduced(inputs)));
          expect_same_bits(all, expected, "reduce_scatter_tensor of " + what);
          if (rank.failed()) return;
        }
      }
    }
  });
}

TEST_P(ResultsConformance, ScalarsAndEmptyShapes) {
  run_in_group([](Rank& rank, ProcessGroup& group) {
    const at::Tensor scalar = at::scalar_tensor(rank.rank() + 1.0);
    group.all_reduce(scalar).wait();
    EXPECT_EQ(scalar.item<double>(), group.size() * (group.size() + 1) / 2.0);
    EXPECT_EQ(scalar.dim(), 0);
    const at::Tensor nothing = at::empty({3, 0, 2});
    group.all_reduce(nothing).wait();
    EXPECT_EQ(nothing.sizes(), at::IntArrayRef({3, 0, 2}));
  });
}

TEST_P(ResultsConformance, ParametersKeepTheirPlaceInAutograd) {
  const double scale = backend().sums_by_a_library ? 1 : 1.0 / 3;
  run_in_group([scale](Rank& rank, ProcessGroup& group) {
    at::Tensor parameter = input_of(rank.rank(), at::kFloat, {20, 30}).t().requires_grad_();
    group.broadcast(parameter, 0).wait();
    expect_same_bits(parameter, input_of(0, at::kFloat, {20, 30}).t(), "broadcast of a parameter");
    group.all_reduce(parameter, {.scale = scale}).wait();
    expect_same_bits(
        parameter,
        reduced(std::vector(group.size(), input_of(0, at::kFloat, {20, 30}).t()), {.scale = scale}),
        "all_reduce of a parameter");
    EXPECT_TRUE(parameter.is_leaf());
    EXPECT_TRUE(parameter.requires_grad());
  });
}

TEST_P(ResultsConformance, EmptyMakesTensorsOfAnyShapeAndType) {
  run_in_group([](Rank& rank, ProcessGroup& group) {
    std::vector<at::Tensor> tensors;
    for (const auto type : all_types()) {
      for (const auto& sizes : std::vector<std::vector<std::int64_t>>{{}, {0}, {1}, {3, 5, 7}}) {
        at::Tensor tensor = group.empty(sizes, type);
        EXPECT_EQ(tensor.sizes(), at::IntArrayRef(sizes));
        EXPECT_EQ(tensor.scalar_type(), type);
        EXPECT_TRUE(tensor.is_contiguous());
        EXPECT_EQ(tensor.device(), group.device());
        tensor.copy_(input_of(rank.rank(), type, sizes));
        tensors.push_back(tensor);
      }
    }
    group.all_reduce(tensors, {.op = ReduceOp::max}).wait();
    for (const auto& tensor : tensors) {
      expect_same_bits(
          tensor,
          reduced(inputs_of_all(group.size(), tensor.scalar_type(), tensor.sizes()),
                  {.op = ReduceOp::max}),
          fmt::format("{} elements of {}", tensor.numel(), c10::toString(tensor.scalar_type())));
    }
  });
}

TEST_P(ResultsConformance, EmptyWorksWhileOtherWorkIsUnderWay) {
  run_in_group([](Rank& rank, ProcessGroup& group) {
    const at::Tensor large = input_of(rank.rank(), at::kFloat, {300'000});
    Work work = group.all_reduce(large);
    const at::Tensor tensor = group.empty({10}, at::kFloat).fill_(1);
    group.all_reduce(tensor).wait();
    work.wait();
    EXPECT_TRUE((tensor == group.size()).all().item<bool>());
    expect_same_bits(large, reduced(inputs_of_all(group.size(), at::kFloat, {300'000})),
                     "all_reduce");
  });
}

}  // namespace
}  // namespace lockstep::testing
