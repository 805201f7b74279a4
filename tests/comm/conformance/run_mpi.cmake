# SPDX-License-Identifier: BSD-3-Clause
# cmake -D MPIEXEC=... -D RANKS=N -D TEST=program [-D ARGUMENTS=...] -P run_mpi.cmake: runs a test
# program as the ranks of an MPI job, in a new folder of their own.
string(RANDOM LENGTH 12 name)
set(folder /tmp/lockstep-mpi-${name})
file(MAKE_DIRECTORY ${folder})
set(ENV{LOCKSTEP_TEST_FOLDER} ${folder})
# Open MPI refuses to run as root, and more ranks than cores, unless told otherwise; from version 5
# on PRRTE is what has to be told.
set(ENV{OMPI_ALLOW_RUN_AS_ROOT} 1)
set(ENV{OMPI_ALLOW_RUN_AS_ROOT_CONFIRM} 1)
set(ENV{OMPI_MCA_rmaps_base_oversubscribe} 1)
set(ENV{PRTE_MCA_rmaps_default_mapping_policy} :oversubscribe)
execute_process(COMMAND ${MPIEXEC} -n ${RANKS} ${TEST} ${ARGUMENTS}
  RESULT_VARIABLE result)
file(REMOVE_RECURSE ${folder})
if(NOT result EQUAL 0)
  message(FATAL_ERROR "${MPIEXEC} ended with ${result}")
endif()
