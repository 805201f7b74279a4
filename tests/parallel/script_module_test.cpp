// SPDX-License-Identifier: BSD-3-Clause
// TorchScript modules in both wrappers.
#include <sstream>

#include "tests/parallel/models.h"
#include "tests/support/thread_group.h"
#include <torch/script.h>

#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/parallel/parallel_module.h"

namespace lockstep::testing {
namespace {

using torch::jit::IValue;

at::Tensor weights(at::IntArrayRef sizes, double salt) {
  return values(sizes, salt).requires_grad_();
}

// Two layers, of which the second is a submodule, and a buffer that training changes.
torch::jit::Module make_script() {
  torch::jit::Module layer("Layer");
  layer.register_parameter("weight", weights({3, 5}, 1), /*is_buffer=*/false);
  layer.define("def forward(self, x):\n  return x.matmul(self.weight.t())\n");
  torch::jit::Module script("Net");
  script.register_parameter("weight", weights({5, 6}, 2), /*is_buffer=*/false);
  script.register_buffer("seen", at::zeros({1}));
  script.register_module("layer", layer);
  for (torch::jit::Module* module : {&layer, &script}) {
    module->register_attribute("training", c10::BoolType::get(), true);
  }
  script.define(R"(
    def forward(self, x):
      if self.training:
        self.seen.add_(x.size(0))
      return self.layer.forward(torch.tanh(x.matmul(self.weight.t())))
  )");
  return script;
}

at::Tensor loss_of(const IValue& output) {
  return output.toTensor().square().mean();
}

void expect_same_gradients_of_scripts(const torch::jit::Module& actual,
                                      const torch::jit::Module& expected) {
  const auto parameters = expected.named_parameters();
  auto wanted = parameters.begin();
  for (const auto& parameter : actual.named_parameters()) {
    const auto expected_one = *wanted;
    ++wanted;
    ASSERT_EQ(parameter.name, expected_one.name);
    expect_close(parameter.value.grad(), expected_one.value.grad(), parameter.name);
  }
}

TEST(ScriptModule, IsTheScript) {
  ScriptModule module(make_script());
  const auto parameters = module.named_parameters();
  ASSERT_EQ(parameters.keys(), (std::vector<std::string>{"weight", "layer.weight"}));
  EXPECT_TRUE(parameters["layer.weight"].is_same(
      module.script().attr("layer").toModule().attr("weight").toTensor()));
  EXPECT_EQ(module.named_buffers().keys(), (std::vector<std::string>{"seen"}));

  module.eval();
  EXPECT_FALSE(module.script().is_training());
  EXPECT_FALSE(module.script().attr("layer").toModule().is_training());
  module.to(at::kDouble);
  EXPECT_EQ(module.script().attr("weight").toTensor().scalar_type(), at::kDouble);

  const auto clone = std::dynamic_pointer_cast<ScriptModule>(module.clone());
  clone->named_parameters()["weight"].data().zero_();
  EXPECT_GT(parameters["weight"].abs().sum().item<double>(), 0);
  EXPECT_EQ(clone->script().attr("weight").toTensor().abs().sum().item<double>(), 0);
  EXPECT_FALSE(clone->script().is_training());
}

TEST(ScriptModule, TrainsInReplicas) {
  torch::jit::Module alone = make_script();
  DataParallel model(make_script(), {.replicas = 3});
  static_assert(std::is_same_v<decltype(model), DataParallel<ScriptModule>>);
  const at::Tensor batch = values({7, 6});
  for (int step = 0; step < 4; ++step) {  // TorchScript profiles the first ones
    loss_of(alone.forward({batch})).backward();
    loss_of(model->forward({batch})).backward();
  }
  expect_same_gradients_of_scripts(model->module()->script(), alone);
  // The first replica's part of the batch.
  EXPECT_EQ(model->module()->script().attr("seen").toTensor().item<float>(), 4 * 3);
}

TEST(ScriptModule, TrainsInRanks) {
  torch::jit::Module alone = make_script();
  const at::Tensor batch = values({6, 6});
  for (int step = 0; step < 4; ++step) loss_of(alone.forward({batch})).backward();
  run_rank_threads(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    DistributedDataParallel model(make_script(), group);
    static_assert(std::is_same_v<decltype(model), DistributedDataParallel<ScriptModule>>);
    for (int step = 0; step < 4; ++step) {
      loss_of(model->forward({part(batch, group->rank(), 2)})).backward();
    }
    expect_same_gradients_of_scripts(model->module()->script(), alone);
  });
}

TEST(ScriptModule, SavesAndLoadsThroughItsWrapper) {
  DataParallel model(make_script(), {.replicas = 2});
  std::stringstream file;
  model->module()->script().save(file);
  torch::jit::Module loaded = torch::jit::load(file);
  const at::Tensor batch = values({4, 6});
  expect_close(loaded.forward({batch}).toTensor(), model->forward({batch}).toTensor(), "loaded");
}

torch::jit::Module make_structured_script() {
  torch::jit::Module script("Structured");
  script.register_parameter("weight", weights({1}, 3), /*is_buffer=*/false);
  script.define(R"(
    def forward(self, pair: Tuple[Tensor, Tensor], rest: List[Tensor], names: Dict[str, Tensor],
                factor: float):
      sum = pair[0] + pair[1] + rest[0] + names["a"]
      return {"sum": sum * self.weight * factor}, [sum, rest[0]], sum.size(0)
  )");
  return script;
}

std::vector<IValue> structured_inputs(const at::Tensor& batch) {
  c10::Dict<std::string, at::Tensor> names;
  names.insert("a", batch + 3);
  return {IValue(std::make_tuple(batch, batch + 1)), IValue(std::vector<at::Tensor>{batch + 2}),
          IValue(names), IValue(0.5)};
}

TEST(ScriptModule, TakesAndReturnsTensorsInsideStructures) {
  torch::jit::Module alone = make_structured_script();
  DataParallel model(make_structured_script(), {.replicas = 2});
  const at::Tensor batch = values({5, 4});
  const auto inputs = structured_inputs(batch);
  const auto expected = alone.forward(structured_inputs(batch)).toTuple()->elements();
  const auto actual = model->forward(inputs).toTuple()->elements();
  expect_close(actual[0].toGenericDict().at("sum").toTensor(),
               expected[0].toGenericDict().at("sum").toTensor(), "dictionary");
  expect_close(actual[1].toListRef()[1].toTensor(), expected[1].toListRef()[1].toTensor(), "list");
  EXPECT_EQ(actual[2].toInt(), 3);  // as replica 0 has it
  // What was passed is as it was.
  expect_close(inputs[0].toTupleRef().elements()[0].toTensor(), batch, "the caller's tuple");
  expect_close(inputs[1].toListRef()[0].toTensor(), batch + 2, "the caller's list");
}

}  // namespace
}  // namespace lockstep::testing
