package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/shardplane/shardplane/test/bench/load"
)

// answerFollowing is what the process of a follower says first.
const answerFollowing = "following"

// newSpread returns the subcommand that waits, for another process, until bindings have a
// schema, and prints how long that took.
func newSpread() *cobra.Command {
	var from targetFlags
	var schema string
	var bound, niceness int
	cmd := &cobra.Command{
		Use: "spread", Short: "Wait until bindings of a shard have a schema", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			target, err := from.target()
			if err != nil {
				return err
			}
			if err := giveWay(niceness); err != nil {
				return err
			}
			took, err := load.AwaitSchema(cmd.Context(), target, schema, bound, func() { fmt.Fprintln(cmd.OutOrStdout(), answerFollowing) })
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), took)
			return err
		},
	}
	fs := cmd.Flags()
	from.add(fs)
	fs.StringVar(&schema, "schema", "", "name of the schema")
	fs.IntVar(&bound, "bindings", 0, "how many bindings get it")
	fs.IntVar(&niceness, "nice", 0, "niceness of the process's session")
	return cmd
}

// follow starts a process that follows bindings until they have a schema, so that what it decodes
// does not delay the client that is measured, and returns what waits for its end.
func follow(ctx context.Context, kubeconfig, schema string, bound int) (wait func() (time.Duration, error), err error) {
	cmd, err := politely(ctx, 19, "spread", "--kubeconfig", kubeconfig, "--context", "base", "--schema", schema, "--bindings", strconv.Itoa(bound))
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("starting the follower's process: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the follower's process: %w", err)
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != answerFollowing {
		return nil, errors.Join(fmt.Errorf("the follower's process says %q", lines.Text()), cmd.Wait())
	}
	return func() (time.Duration, error) {
		lines.Scan()
		took, err := time.ParseDuration(lines.Text())
		return took, errors.Join(err, cmd.Wait())
	}, nil
}
