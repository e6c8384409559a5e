package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
)

// referenceColumn is the column with which others are compared.
const referenceColumn = "reference"

// allRun measures a reference server and then a development cluster.
type allRun struct {
	options

	binary, dir string
	shards      int
	servers     io.Writer
}

func newAll() *cobra.Command {
	o := allRun{servers: io.Discard}
	var verbose bool
	cmd := &cobra.Command{Use: "all", Short: "Run the workloads against the reference server and then a development cluster", Args: cobra.NoArgs}
	fs := cmd.Flags()
	fs.StringVar(&o.binary, "binary", "bin/shardplane", "the shardplane binary")
	fs.IntVar(&o.shards, "shards", 2, "number of shards of the development cluster")
	fs.BoolVar(&verbose, "verbose", false, "show the output of the servers")
	o.addFlags(fs)
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if err := o.validate(); err != nil {
			return err
		}
		if verbose {
			o.servers = os.Stderr
		}
		if o.dir, err = os.MkdirTemp("", "shardplane-bench-"); err != nil {
			return fmt.Errorf("creating a directory for the servers: %w", err)
		}
		table := &report{}
		err = o.run(cmd.Context(), table)
		return errors.Join(err, table.print(cmd.OutOrStdout()), os.RemoveAll(o.dir))
	}
	return cmd
}

// run measures one server after the other, because they would share the cores.
func (o *allRun) run(ctx context.Context, table *report) error {
	binary, err := os.Stat(o.binary)
	if err != nil {
		return fmt.Errorf("finding the shardplane binary: %w", err)
	}
	if err := o.runReference(ctx, table.column(referenceColumn)); err != nil {
		return err
	}
	to := table.column("Shardplane")
	to.add("binary size", "MB", float64(binary.Size())/1e6, "")
	progress("starting a development cluster with %d shards", o.shards)
	dir := filepath.Join(o.dir, "cluster")
	cluster, took, err := startCluster(ctx, o.binary, dir, o.shards, o.servers)
	if err != nil {
		return err
	}
	to.add("start until ready", "s", took.Seconds(), fmt.Sprintf("%d shards", o.shards))
	s := server{pid: cluster.pid()}
	if s.direct, err = newTarget(filepath.Join(dir, ".kcp-0", "admin.kubeconfig"), "base", true); err == nil {
		var proxy target
		proxy, err = newTarget(filepath.Join(dir, ".kcp", "admin.kubeconfig"), "base", true)
		s.proxy = &proxy
	}
	if err == nil {
		err = o.measure(ctx, to, s)
	}
	return errors.Join(err, cluster.stop())
}

func (o *allRun) runReference(ctx context.Context, to *column) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program: %w", err)
	}
	progress("starting the reference server")
	dir := filepath.Join(o.dir, "reference")
	p, err := startProcess(ctx, o.servers, self, "reference", "--dir", dir)
	if err != nil {
		return err
	}
	kubeconfig := filepath.Join(dir, "reference.kubeconfig")
	starting, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	s := server{pid: p.pid()}
	if err = p.waitForFile(starting, kubeconfig); err == nil {
		s.direct, err = newTarget(kubeconfig, "", false)
	}
	if err == nil {
		err = o.measure(ctx, to, s)
	}
	return errors.Join(err, p.stop())
}
