// SPDX-License-Identifier: BSD-3-Clause
// Everything that a training program needs, in order of use. Each header can also be included by
// itself, which compiles faster.
#pragma once

// clang-format off
#include "lockstep/core/error.h"
#include "lockstep/launch/spawn.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/comm/group_argument.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/comm/single_process_groups.h"
#include "lockstep/comm/objects.h"
#include "lockstep/data/distributed_sampler.h"
#include "lockstep/data/distributed_weighted_sampler.h"
#include "lockstep/data/curriculum_sampler.h"
#include "lockstep/data/sharding_filter.h"
#include "lockstep/data/mnist_dataset.h"
#include "lockstep/data/linear_dataset.h"
#include "lockstep/data/memory_loader.h"
#include "lockstep/data/standardization.h"
#include "lockstep/parallel/reducer.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/hooks/comm_hooks.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/join.h"
#include "lockstep/parallel/sync_batch_norm.h"
#include "lockstep/parallel/functional.h"
#include "lockstep/parallel/finite_gradients.h"
#include "lockstep/parallel/check_in_sync.h"
#include "lockstep/optim/clip_grad.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/train/evaluate.h"
#include "lockstep/train/learning_rate.h"
#include "lockstep/train/mean_over_ranks.h"
#include "lockstep/train/print0.h"
#include "lockstep/train/progress.h"
#include "lockstep/train/seed.h"
// clang-format on
