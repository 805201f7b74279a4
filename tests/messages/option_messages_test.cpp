// SPDX-License-Identifier: BSD-3-Clause
// The full text of what trainers, schedules, scalers, hooks and the start say about wrong options
// and environment variables.
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <regex>
#include <string>
#include <vector>

#include "tests/messages/golden.h"
#include "tests/support/environment.h"
#include "tests/support/free_port.h"
#include "tests/support/temporary_folder.h"
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "lockstep/amp/grad_scaler.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/core/net/network_interfaces.h"
#include "lockstep/core/net/tcp_socket.h"
#include "lockstep/hooks/comm_hooks.h"
#include "lockstep/optim/clip_grad.h"
#include "lockstep/optim/lr_schedule.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/parallel/functional.h"
#include "lockstep/parallel/sync_batch_norm.h"
#include "lockstep/rendezvous/hostlist.h"
#include "lockstep/rendezvous/rendezvous.h"
#include "lockstep/train/option_checks.h"
#include "lockstep/train/trainer.h"
#include "lockstep/train/watched_metric.h"

namespace lockstep::testing {
namespace {

// Trainers.

TEST(OptionMessages, OptionsOfATrainer) {
  const auto group = make_self_group();
  const auto with = [&](const TrainerOptions& options) {
    return [group, options] { resolved(options, *group); };
  };
  expect_messages(
      "[Trainer] rank 0 of 1: ",
      {{with({.epochs = 0}), "0 epochs; train for at least 1"},
       {with({.accumulation_steps = 0}), "accumulation_steps is 0; a step needs at least 1 batch"},
       {with({.patience = -1}), "patience is -1; give a number of epochs, or 0"},
       {with({.lr_scale = 0}), "lr_scale is 0; it must be positive, such as group->size()"},
       {with({.ema_decay = 1}), "ema_decay is 1; it must be from 0 to below 1, such as 0.999"},
       {with({.max_grad_norm = -1}), "max_grad_norm is -1; it must not be negative"},
       {with({.distributed = {.whole_gradients = false}}),
        "divided gradients need .shard_optimizer = true"},
       {with({.data_parallel = {.replicas = 2}}), "2 replicas need TrainingMode::data_parallel"},
       {with({.checkpoints = TrainerCheckpointOptions{.folder = "run", .every_steps = -1}}),
        "checkpoints every -1 steps; give a positive number, or 0"},
       {with({.restore_best = true,
              .checkpoints = TrainerCheckpointOptions{.folder = "run", .keep_best = 0}}),
        "restore_best needs the checkpoint of the best evaluation; set keep_best to at least 1"},
       {with({.batches_per_line = -1}),
        "a line every -1 batches, ranks compared every 0 steps; give positive numbers, or 0"},
       {with({.check_in_sync = 1}),
        "check_in_sync compares ranks, and needs TrainingMode::distributed"},
       {with({.mode = TrainingMode::distributed,
              .check_in_sync = 1,
              .distributed = {.whole_gradients = false},
              .shard_optimizer = true}),
        "check_in_sync compares gradients; leave whole_gradients on and one_copy_per_host off"},
       {with({.loss_reduction = LossReduction::sum}),
        "a sum of losses would become the mean over the ranks' sums; set .microbatches"},
       {with({.amp = at::kHalf, .check_finite = true}),
        "training in float16 skips steps that overflow; leave out check_finite"}});
}

TEST(OptionMessages, OptionsOfMicrobatches) {
  const auto group = make_self_group();
  const auto with = [&](TrainerOptions options) {
    if (options.microbatches == 0) options.microbatches = 4;
    return [group, options] { resolved(options, *group); };
  };
  expect_messages(
      "[Trainer] rank 0 of 1: ",
      {{with({.microbatches = -1}), "microbatches is -1; give a positive number, or 0"},
       {with({.mode = TrainingMode::data_parallel, .data_parallel = {.replicas = 8}}),
        "4 microbatches cannot be divided among 8 replicas; give at least one for each replica"},
       {with({.accumulation_steps = 2}),
        "microbatches and accumulation_steps both divide a step; multiply microbatches by the "
        "accumulation steps"},
       {with({.mode = TrainingMode::distributed,
              .distributed = {.whole_gradients = false},
              .shard_optimizer = true}),
        "microbatches give every rank the whole gradients; leave whole_gradients on"},
       {with({.sync_batchnorm = true}),
        "sync_batchnorm normalizes over ranks, and with microbatches a result does not depend on "
        "the ranks; leave it out: BatchNorm normalizes over a microbatch"},
       {with({.evaluation_buffers = EvaluationBuffers::mean}),
        "a mean of buffers depends on the number of ranks, and with microbatches their buffers are "
        "equal; leave .evaluation_buffers at of_rank_0"},
       {with({.amp = at::kHalf}),
        "microbatches cannot be trained in float16; use bfloat16, which needs no scaling"},
       {with({.mode = TrainingMode::data_parallel, .balance_load = true}),
        "balance_load moves microbatches from rank to rank, and replicas share them equally; use "
        "TrainingMode::distributed, or leave balance_load off"},
       {[&] { resolved({.balance_load = true}, *group); },
        "balance_load moves microbatches from rank to rank; set .microbatches, or leave "
        "balance_load off"}});
}

TEST(OptionMessages, OptionsOfElasticJobs) {
  const auto group = make_self_group();
  const auto with = [&](TrainerOptions options, bool can_begin_again = true,
                        bool can_make_optimizer = true) {
    options.mode = TrainingMode::distributed;
    return [=] { check_elastic(*group, options, can_begin_again, can_make_optimizer); };
  };
  const TrainerOptions replicas{.mode = TrainingMode::data_parallel, .microbatches = 4};
  expect_messages(
      "[Trainer] rank 0 of 1: this job is elastic, and ",
      {{with({}),
        "without microbatches the result depends on the number of ranks; set .microbatches, or "
        "start the job without --elastic"},
       {[=] { check_elastic(*group, replicas, true, true); },
        "the modes single and data_parallel have no ranks that could go on; leave .mode out, or "
        "start the job without --elastic"},
       {with({.microbatches = 4, .shard_optimizer = true}, /*can_begin_again=*/true,
             /*can_make_optimizer=*/false),
        "an optimizer that the program has made cannot be sharded over other ranks; give "
        "optimize_with() its type and options or a function that makes it, or leave out "
        ".shard_optimizer"},
       {with({.microbatches = 4, .restore_best = true}),
        "the best weights are in the memory of each rank, which a replacement lacks; set "
        ".checkpoints, or leave .restore_best out"},
       {with({.microbatches = 4}, /*can_begin_again=*/false),
        "a loop over libtorch's data loader cannot begin again while its workers load; use a "
        "DataLoader, a MemoryLoader, or no workers"}});
  EXPECT_EQ(message_of([&] { resolved({.microbatches = 2}, *group, /*most_ranks=*/3); }),
            "[Trainer] rank 0 of 1: 2 microbatches cannot be divided among 3 ranks, to which this "
            "job may be resized; give at least one for each rank, or a smaller MAX in --elastic "
            "MIN:MAX");
}

TEST(OptionMessages, OptionsThatNeedAnotherNumberOfRanks) {
  const auto message = [](const TrainerOptions& options) {
    return on_rank_0(
        2, [&](const std::shared_ptr<ProcessGroup>& group) { resolved(options, *group); });
  };
  EXPECT_EQ(message({.mode = TrainingMode::single}),
            "[Trainer] rank 0 of 2: single and data_parallel train in one process; use "
            "TrainingMode::distributed");
  EXPECT_EQ(message({.microbatches = 1}),
            "[Trainer] rank 0 of 2: 1 microbatches cannot be divided among 2 ranks; give at least "
            "one for each rank");
  EXPECT_EQ(message({.microbatches = 2, .balance_load = true}),
            "[Trainer] rank 0 of 2: each of 2 ranks has 1 microbatch, of which balance_load can "
            "move none; raise .microbatches, or leave balance_load off");
}

TEST(OptionMessages, EvaluationsThatDecide) {
  const auto group = make_self_group();
  const auto fit = [&](const TrainerOptions& options, const FitOptions& given) {
    return [=] { check_fit(*group, options, given, /*can_begin_again=*/true); };
  };
  const auto watch = [&](const Metrics& metrics, const WatchedMetric& watched = {}) {
    return [=] { watched_metric(metrics, {.watch = watched, .patience = 1}, trainer_on(*group)); };
  };
  expect_messages(
      "[Trainer] rank 0 of 1: ",
      {{fit({.patience = 2}, {}),
        ".patience needs the function evaluate; give fit() .evaluate, or leave the option out"},
       {fit({}, {.callbacks = {nullptr}}),
        "callback 0 of fit() is null; make an object for it, or leave it out"},
       {watch({}),
        "evaluate() returned nothing, and one metric decides; return a number, or metrics by their "
        "names"},
       {watch({{"accuracy", 1}, {"loss", 0.5}}),
        "evaluate() returned accuracy, loss, and one metric decides; name the metric that decides: "
        ".watch = {.name = \"accuracy\"}"},
       {watch({{"accuracy", 1}}, {.name = "recall"}),
        "evaluate() returned accuracy, and no recall; name the metric that decides: .watch = "
        "{.name = \"accuracy\"}"},
       {watch({{"val_loss", 0.5}}),
        "evaluate() returned val_loss, of which the highest would be the best; say which is "
        "better: .watch = {.name = \"val_loss\", .lower_is_better = true}"}});
}

TEST(OptionMessages, FoldersOfATrainer) {
  const TemporaryFolder folder;
  const std::vector<at::Tensor> batches{torch::ones({1, 2})};
  const auto loss = [](auto& model, auto& x) { return model(x).sum(); };
  const auto train = [&](int times) {
    return [&, times] {
      Trainer trainer(torch::nn::Linear(2, 2), make_self_group(),
                      {.checkpoints = TrainerCheckpointOptions{.folder = folder.path()}});
      trainer.optimize_with<optim::SGD>(torch::optim::SGDOptions(0.1));
      for (int i = 0; i < times; ++i) trainer.fit(batches, loss);
    };
  };
  expect_messages(
      "[Trainer] rank 0 of 1: ",
      {{train(2),
        "fit() of a trainer with checkpoints can be called once, since a checkpoint does not "
        "record which call wrote it; make another trainer: with another folder, or with .resume to "
        "go on"},
       {train(1),
        "the folder FOLDER of rank 0 has checkpoints of an earlier run; resume that run, or choose "
        "another folder"}});
}

// Schedules, scalers, clipping and hooks.

TEST(OptionMessages, Schedules) {
  const auto check = [](const optim::LRSchedule& schedule) {
    return [schedule] { schedule.check(1); };
  };
  const optim::StepLR no_steps{};
  expect_messages(
      "",
      {{check(optim::ConstantLR{.factor = 2}), "[ConstantLR] factor is 2; it must be from 0 to 1"},
       {check(optim::LinearLR{.start_factor = 0}),
        "[LinearLR] start_factor is 0; it must be above 0 and at most 1"},
       {check(no_steps), "[StepLR] step_size is 0; it must be positive"},
       {check(optim::MultiStepLR{.milestones = {-1}}),
        "[MultiStepLR] a milestone is -1; it must be 0 or more"},
       {check(optim::ExponentialLR{}),
        "[ExponentialLR] gamma is 0; it must be positive, and mostly below 1"},
       {check(optim::PolynomialLR{.power = 0}), "[PolynomialLR] power is 0; it must be positive"},
       {check(optim::CosineAnnealingLR{}), "[CosineAnnealingLR] T_max is 0; it must be positive"},
       {check(optim::LambdaLR{}),
        "[LambdaLR] lr_lambda has 0 entries, and the optimizer 1 parameter groups; give one for "
        "all groups, or one for each"},
       {check(optim::OneCycleLR{.max_lr = {0.1}}),
        "[OneCycleLR] total_steps is 0; it must be positive"},
       {check(optim::SequentialLR{}), "[SequentialLR] schedulers is empty; give at least one"},
       {check(optim::SequentialLR{.schedulers = {no_steps}}),
        "[SequentialLR] scheduler 0 ([StepLR]): step_size is 0; it must be positive"},
       {check(optim::SequentialLR{.schedulers = {optim::ConstantLR{}}, .milestones = {3}}),
        "[SequentialLR] there are 1 schedulers and 1 milestones; give one milestone fewer than "
        "schedulers"},
       {[] { optim::LRSchedule(optim::OneCycleLR{.max_lr = {0.1}, .total_steps = 4}).at(5, 0.1); },
        "[OneCycleLR] this is step 5 of 4; set total_steps to the number of steps of the whole "
        "training"}});
}

TEST(OptionMessages, ScalersAndClipping) {
  expect_messages(
      "[GradScaler] ",
      {{[] { GradScaler({.init_scale = 0}); },
        "the scale 0 is not a positive finite float; PyTorch begins with 65536"},
       {[] { GradScaler({.growth_factor = 1}); },
        "growth_factor is 1; it must be above 1, such as 2"},
       {[] { GradScaler({.backoff_factor = 1}); },
        "backoff_factor is 1; it must be between 0 and 1, such as 0.5"},
       {[] { GradScaler({.growth_interval = 0}); },
        "growth_interval is 0; it must be at least 1, such as 2000"},
       {[] { GradScaler().update(); }, "update() needs a step() or an unscale_() before it"}});
  EXPECT_EQ(on_rank_0(2,
                      [](const std::shared_ptr<ProcessGroup>& group) {
                        torch::nn::Linear net(2, 2);
                        DistributedDataParallel model(net, group);
                        clip_grad_value_(model, -1);
                      }),
            "[clip_grad_value_] rank 0 of 2: clip_value is -1; it must not be negative");
}

TEST(OptionMessages, Hooks) {
  const auto group = make_self_group();
  expect_messages(
      "",
      {{[&] { power_sgd_hook({.group = group, .matrix_approximation_rank = 0}); },
        "[power_sgd_hook] rank 0 of 1: matrix_approximation_rank is 0; set it to 1 or more"},
       {[&] { power_sgd_hook({.group = group, .start_powerSGD_iter = 1}); },
        "[power_sgd_hook] rank 0 of 1: start_powerSGD_iter is 1, but error feedback and warm start "
        "need plain iterations first; set it to 2 or more, or set use_error_feedback and "
        "warm_start to false"},
       {[&] { power_sgd_hook({.group = group, .min_compression_rate = -1}); },
        "[power_sgd_hook] rank 0 of 1: min_compression_rate is -1 and orthogonalization_epsilon is "
        "0; neither may be negative"},
       {[&] { post_local_sgd_hook({.group = group, .start_localSGD_iter = -1}); },
        "[post_local_sgd_hook] rank 0 of 1: start_localSGD_iter is -1; set it to 0 or more"},
       {[&] { PeriodicModelAverager({.warmup_steps = 5}, group); },
        "[PeriodicModelAverager] rank 0 of 1: period is 0 and warmup_steps is 5; set period to 1 "
        "or more, and warmup_steps to 0 or more"}});
}

TEST(OptionMessages, AveragersThatDiffer) {
  EXPECT_EQ(on_rank_0(2,
                      [](const std::shared_ptr<ProcessGroup>& group) {
                        PeriodicModelAverager averager({.period = 1 + group->rank()}, group);
                        averager.average_parameters({torch::ones({2})});
                      }),
            "[PeriodicModelAverager] rank 0 of 2: the ranks have different averagers. The first "
            "difference: rank 0 has period 1; rank 1 has period 2; build the same averager, with "
            "the same options, on every rank");
}

TEST(OptionMessages, NormsThatCannotBeReplaced) {
  torch::nn::Module block;
  block.register_module("norm", torch::nn::BatchNorm1d(2));
  EXPECT_EQ(on_rank_0(2,
                      [&](const std::shared_ptr<ProcessGroup>& group) {
                        convert_sync_batchnorm(block, group);
                      }),
            "[convert_sync_batchnorm] rank 0 of 2: cannot replace norm: only what is in a "
            "torch::nn::Sequential can be replaced, since other C++ code calls a BatchNorm by its "
            "type. The net is unchanged; declare such members as lockstep::SyncBatchNorm, which "
            "convert_sync_batchnorm gives the group");
}

TEST(OptionMessages, Reductions) {
  EXPECT_EQ(on_rank_0(2,
                      [](const std::shared_ptr<ProcessGroup>& group) {
                        const auto complex = torch::ones({2}, torch::kComplexFloat);
                        group->all_reduce(complex, ReduceOp::product).wait();
                      }),
            "[thread] all_reduce, rank 0 of 2: tensors of type ComplexFloat have no product: "
            "complex numbers of 64 and 128 bits have a sum and a mean; gather the ranks' tensors "
            "to combine them otherwise, or reduce at::view_as_real(tensor), whose real and "
            "imaginary parts are separate numbers");
  EXPECT_EQ(on_rank_0(2,
                      [](const std::shared_ptr<ProcessGroup>& group) {
                        const auto tensor = torch::ones({2}).requires_grad_();
                        functional::all_reduce(tensor, group, ReduceOp::max);
                      }),
            "[functional] all_reduce, rank 0 of 2: gradients pass through a sum or a mean, not "
            "through max; choose one of these, or pass tensor.detach()");
}

// The start.

// Unsets the variables of launchers after each test.
class EnvironmentMessages : public ::testing::Test {
 protected:
  ~EnvironmentMessages() override { set_launcher_environment({}); }
};

TEST_F(EnvironmentMessages, VariablesOfLaunchers) {
  const auto with = [](const std::map<std::string, std::string>& variables) {
    return [variables] {
      set_launcher_environment(variables);
      membership_in_environment();
    };
  };
  const std::string launch =
      "; start it with `lockstep run -n N PROGRAM` or another launcher, which sets all of them, or "
      "unset them all to train alone";
  expect_messages(
      "",
      {{with({{"RANK", "one"}}),
        "RANK=\"one\" in the environment: give a whole number from 0 to 2147483647, or unset it"},
       {with({{"RANK", " 1"}}),
        "RANK=\" 1\" in the environment has spaces or quotes around its number: give a whole "
        "number from 0 to 2147483647 without them (docker's --env-file keeps quotes), or unset it"},
       {with({{"MASTER_PORT", "tcp://10.0.0.1:29500"}}),
        "MASTER_PORT=\"tcp://10.0.0.1:29500\" in the environment is the address of a Kubernetes "
        "Service named \"master\": Kubernetes sets such variables (service links) in every "
        "container of the Service's namespace. Set enableServiceLinks: false in the pod's spec, or "
        "rename the Service; then give a whole number from 1 to 65535, or unset it"},
       {with({{"MASTER_ADDR", "tcp://node0"}}),
        "MASTER_ADDR=\"tcp://node0\" in the environment: give one host name or address of rank 0, "
        "without port (which goes into MASTER_PORT), scheme, spaces or quotes, or unset it"},
       {with({{"RANK", "1"}}),
        "env://: WORLD_SIZE and MASTER_ADDR and MASTER_PORT not set, though other variables of a "
        "launcher are" +
            launch},
       {with({{"RANK", ""}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}}),
        "env://: RANK (empty) not set, though other variables of a launcher are" + launch},
       {with({{"RANK", "0"},
              {"WORLD_SIZE", "2"},
              {"MASTER_ADDR", "a"},
              {"MASTER_PORT", "1"},
              {"LOCAL_RANK", "2"},
              {"LOCAL_WORLD_SIZE", "2"}}),
        "rank 0 of 2: LOCAL_RANK=2 and LOCAL_WORLD_SIZE=2; LOCAL_RANK must be less than "
        "LOCAL_WORLD_SIZE, which must be at most the world size"},
       {with({{"OMPI_COMM_WORLD_RANK", "5"},
              {"OMPI_COMM_WORLD_SIZE", "8"},
              {"RANK", "5"},
              {"WORLD_SIZE", "4"}}),
        "env://: this process is rank 5 of 8 by Open MPI (OMPI_COMM_WORLD_RANK, "
        "OMPI_COMM_WORLD_SIZE), but RANK=5 WORLD_SIZE=4 (or the options) say otherwise; unset RANK "
        "and WORLD_SIZE to let the launcher number the ranks"},
       {with({{"OMPI_COMM_WORLD_RANK", "1"},
              {"OMPI_COMM_WORLD_SIZE", "2"},
              {"PMI_RANK", "0"},
              {"PMI_SIZE", "2"}}),
        "this process is rank 1 of 2 by Open MPI (OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE), but "
        "rank 0 of 2 by MPICH or another PMI (PMI_RANK, PMI_SIZE); start it with one launcher"}});
}

TEST_F(EnvironmentMessages, InterfacesThatAreNotThere) {
  ::setenv("GLOO_SOCKET_IFNAME", "no-such7", 1);
  const std::string message =
      message_of([] { check_interfaces({.component = "gloo"}, "GLOO_SOCKET_IFNAME", gloo_uses); });
  ::unsetenv("GLOO_SOCKET_IFNAME");
  EXPECT_EQ(std::regex_replace(message, std::regex("There are: .*;"), "There are: lo;"),
            "[gloo] GLOO_SOCKET_IFNAME=no-such7 names no network interface of this machine that is "
            "up and has an address. There are: lo; set it to one of them, or unset it");
}

TEST(OptionMessages, APortThatIsTaken) {
  const TakenPort taken;
  const std::string port = std::to_string(taken.port());
  expect_messages("", {{[&] { listen_tcp("127.0.0.1", static_cast<std::uint16_t>(taken.port())); },
                        "cannot listen on 127.0.0.1 port " + port + ": Address already in use"}});
}

TEST_F(EnvironmentMessages, AddressesAndRanks) {
  const auto start = [](const InitOptions& options,
                        const std::map<std::string, std::string>& variables = {}) {
    return [options, variables] {
      set_launcher_environment(variables);
      init_process_group(options);
    };
  };
  expect_messages(
      "",
      {{start({.init_method = "ftp://node0"}),
        "init_method \"ftp://node0\" is unknown; use env://, tcp://host:port or file:///path"},
       {start({.init_method = "file://store"}),
        "init_method \"file://store\": it must be file:/// and an absolute path that all ranks can "
        "write"},
       {start({.init_method = "tcp://node0:1", .rank = 0}),
        "tcp://node0:1 needs the world size: give it in the options or as WORLD_SIZE"},
       {start({.init_method = "tcp://node0:1", .rank = 0, .world_size = 0}),
        "the world size is 0; it must be at least 1"},
       {start({.init_method = "tcp://node0:1", .rank = 0, .world_size = 2}, {{"RANK", "1"}}),
        "rank is 0 in the options, but the environment says RANK=1; give it once, or make both "
        "agree"},
       {[] { expand_hostlist("node[1-4", 1); },
        "\"node[1-4\" is not a list of hosts as Slurm writes them (node[01-04,07],other): a [ has "
        "no ] behind it"}});
}

}  // namespace
}  // namespace lockstep::testing
