package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/featuregate"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/dev/supervise"
)

// orphanTimeout limits the shutdown of a server whose supervisor has died.
const orphanTimeout = 5 * time.Second

var errKilled = errors.New("killed during shutdown")

// serve makes cmd run the server that build constructs from completed options, with its flags, the logging flags and the
// signals that stop it.
func serve[C interface {
	Validate() error
	Warnings() []string
}, S interface {
	Run(ctx context.Context) error
}](
	cmd *cobra.Command, flags cliflag.NamedFlagSets, complete func() C, build func(context.Context, C) (S, error),
) *cobra.Command {
	logging := logsapi.NewLoggingConfiguration()
	gates := featuregate.NewFeatureGate()
	utilruntime.Must(logsapi.AddFeatureGates(gates)) // cannot fail, because the gates are new
	addLoggingFlags(logging, flags.FlagSet("Logging"))
	addFlags(cmd, flags)
	cmd.GroupID = groupServers
	cmd.Args = cobra.NoArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		completed := complete()
		if err := completed.Validate(); err != nil {
			return invalid(err)
		}
		if err := logsapi.ValidateAndApply(logging, gates); err != nil {
			return invalid(fmt.Errorf("logging: %w", err))
		}
		for _, warning := range completed.Warnings() {
			klog.Warning(warning)
		}
		setProcessors()
		paceCollector()
		ctx, force, done := untilSignal(cmd.Context())
		defer done()
		return failed(runUntilForced(ctx, force, supervise.Lifeline(), func(ctx context.Context) error {
			s, err := build(ctx, completed)
			if err != nil {
				return err
			}
			return s.Run(ctx)
		}))
	}
	return cmd
}

// runUntilForced runs a server until ctx is done or its supervisor dies. It does not wait for the shutdown if it is
// forced, or if it takes too long after the supervisor has died.
func runUntilForced(ctx context.Context, force, lifeline <-chan struct{}, run func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	result := make(chan error, 1)
	go func() { result <- run(ctx) }() // the process exits soon if it is not awaited
	var timeout <-chan time.Time
	for {
		select {
		case err := <-result:
			return err
		case <-force:
			return errKilled
		case <-timeout:
			return errKilled
		case <-lifeline:
			cancel()
			lifeline, timeout = nil, time.After(orphanTimeout)
		}
	}
}

// addLoggingFlags adds the common logging flags of Kubernetes components.
func addLoggingFlags(c *logsapi.LoggingConfiguration, fs *pflag.FlagSet) {
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	logsapi.AddFlags(c, all)
	for _, name := range []string{"logging-format", "v"} {
		fs.AddFlag(all.Lookup(name))
	}
}
