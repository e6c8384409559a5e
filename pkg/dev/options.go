package dev

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	cliflag "k8s.io/component-base/cli/flag"
)

// MaxShards is the maximum number of shards of a development cluster.
const MaxShards = 16

// Options are the options of a development cluster, which Flags describes.
type Options struct {
	Shards  int
	WorkDir string
	// ShardPort is the port of the root shard; shard n listens on ShardPort+n.
	FrontProxyPort, ShardPort, CacheServerPort int
	DevTokens                                  bool
	EncryptionConfigFile                       string
	ShardArgs, FrontProxyArgs                  []string
	Verbose                                    bool
	Verbosity                                  int
	StartTimeout                               time.Duration
}

const bindAddress = "127.0.0.1"

// NewOptions returns the defaults.
func NewOptions() *Options {
	return &Options{
		Shards:          2,
		WorkDir:         ".",
		FrontProxyPort:  6443,
		ShardPort:       6444,
		CacheServerPort: 8012,
		StartTimeout:    2 * time.Minute,
	}
}

// Flags returns the flags of all options, grouped for the help.
func (o *Options) Flags() (fss cliflag.NamedFlagSets) {
	fs := fss.FlagSet("Cluster")
	fs.IntVar(&o.Shards, "shards", o.Shards, fmt.Sprintf("number of shards, 1 to %d; the first is named root, the others shard-1, shard-2, …", MaxShards))
	fs.StringVar(&o.WorkDir, "work-dir", o.WorkDir, "`directory` for certificates, kubeconfigs, data and logs, in .kcp and .kcp-*; created if missing and kept for the next start")
	fs.DurationVar(&o.StartTimeout, "start-timeout", o.StartTimeout, "maximum time until all components are ready")
	fs.StringArrayVar(&o.ShardArgs, "shard-arg", o.ShardArgs, "additional `flag` for every shard, e.g. --shard-arg=--etcd-compaction-interval=1m; may be repeated")
	fs.StringArrayVar(&o.FrontProxyArgs, "front-proxy-arg", o.FrontProxyArgs, "additional `flag` for the front-proxy, e.g. --front-proxy-arg=--mapping-file=mappings.yaml; may be repeated")
	fs.StringVar(&o.EncryptionConfigFile, "encryption-provider-config", o.EncryptionConfigFile, "`file` with the EncryptionConfiguration for all shards and the cache server, which load changes automatically; without it, objects are not encrypted")
	fs = fss.FlagSet("Ports")
	fs.IntVar(&o.FrontProxyPort, "front-proxy-port", o.FrontProxyPort, "port of the front-proxy on 127.0.0.1")
	fs.IntVar(&o.ShardPort, "shard-port", o.ShardPort, "port of the first shard on 127.0.0.1; shard n listens on this port + n")
	fs.IntVar(&o.CacheServerPort, "cache-server-port", o.CacheServerPort, "port of the cache server on 127.0.0.1")
	fss.FlagSet("Authentication").BoolVar(&o.DevTokens, "dev-tokens", o.DevTokens, "accept the well-known bearer tokens user-1-token to user-5-token (user user-N, group team-N) and admin-token (system:masters)")
	fs = fss.FlagSet("Logging")
	fs.BoolVar(&o.Verbose, "verbose", o.Verbose, "show the logs of all components, each line prefixed with its component")
	fs.IntVarP(&o.Verbosity, "v", "v", o.Verbosity, "log `level` of the components, 0 to 10")
	return fss
}

// CompletedOptions can only be created by Complete, and are immutable.
type CompletedOptions struct{ completedOptions }

type completedOptions struct{ Options }

// Complete makes paths absolute, so that printed and written paths are valid in any directory.
func (o *Options) Complete() (CompletedOptions, error) {
	completed := *o
	if completed.WorkDir == "" {
		return CompletedOptions{}, errors.New("--work-dir must not be empty: pass a directory, or omit it to use the current one")
	}
	dir, err := filepath.Abs(completed.WorkDir)
	if err != nil {
		return CompletedOptions{}, fmt.Errorf("resolving --work-dir: %w", err)
	}
	completed.WorkDir = dir
	if file := completed.EncryptionConfigFile; file != "" {
		if completed.EncryptionConfigFile, err = filepath.Abs(file); err != nil {
			return CompletedOptions{}, fmt.Errorf("resolving --encryption-provider-config: %w", err)
		}
	}
	return CompletedOptions{completedOptions{completed}}, nil
}

// Validate returns all errors in the options, with the names of the flags.
func (o CompletedOptions) Validate() error {
	var errs []error
	if o.Shards < 1 || o.Shards > MaxShards {
		return fmt.Errorf("--shards is %d: it must be 1 to %d", o.Shards, MaxShards) // the ports below depend on it
	}
	if o.Verbosity < 0 || o.Verbosity > 10 {
		errs = append(errs, fmt.Errorf("-v is %d: it must be 0 to 10", o.Verbosity))
	}
	for _, more := range []struct {
		flag, example string
		args          []string
	}{
		{"--shard-arg", "--etcd-compaction-interval=1m", o.ShardArgs},
		{"--front-proxy-arg", "--mapping-file=mappings.yaml", o.FrontProxyArgs},
	} {
		for _, arg := range more.args {
			if !strings.HasPrefix(arg, "-") {
				errs = append(errs, fmt.Errorf("%s is %q: it must be a flag with its value, such as %s=%s", more.flag, arg, more.flag, more.example))
			}
		}
	}
	if o.StartTimeout <= 0 {
		errs = append(errs, fmt.Errorf("--start-timeout is %s: it must be positive", o.StartTimeout))
	}
	return errors.Join(append(errs, o.validatePorts()...)...)
}

func (o CompletedOptions) validatePorts() []error {
	var errs []error
	taken := map[int]string{}
	for _, p := range o.ports() {
		switch other, twice := taken[p.port]; {
		case p.port < 1 || p.port > 65535:
			errs = append(errs, fmt.Errorf("port %d for the %s is not a port: pass %s so that it is 1 to 65535", p.port, p.component, p.flag))
		case twice:
			errs = append(errs, fmt.Errorf("port %d would be used by the %s and the %s: pass another %s", p.port, other, p.component, p.flag))
		}
		taken[p.port] = p.component
	}
	return errs
}

type port struct {
	component string
	port      int
	flag      string
}

func (o CompletedOptions) ports() []port {
	ports := []port{{"front-proxy", o.FrontProxyPort, "--front-proxy-port"}}
	for n := range o.Shards {
		ports = append(ports, port{"shard " + shardName(n), o.ShardPort + n, "--shard-port"})
	}
	return append(ports, port{"cache server", o.CacheServerPort, "--cache-server-port"})
}

func shardName(n int) string {
	if n == 0 {
		return "root"
	}
	return fmt.Sprintf("shard-%d", n)
}
