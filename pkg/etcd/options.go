package etcd

import (
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.etcd.io/etcd/client/v3/kubernetes"
)

// subdirectory of a server's data directory with the data of the embedded etcd.
const subdirectory = "etcd"

// Directory returns the directory of the embedded etcd in a server's data directory.
func Directory(dataDir string) string { return filepath.Join(dataDir, subdirectory) }

// NewOptions returns the defaults for a server with a data directory and a key prefix.
func NewOptions(dataDir, prefix string) Options {
	return Options{DataDir: dataDir, Prefix: prefix, CompactionInterval: 5 * time.Minute, QuotaBytes: defaultQuotaBytes}
}

// AddFlags adds the flags of o to fs.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.DataDir, "data-dir", o.DataDir, "directory for the data of the embedded etcd; created if missing")
	fs.StringSliceVar(&o.Servers, "etcd-servers", o.Servers, "URLs of an external etcd cluster; if unset, an embedded etcd stores its data in --data-dir")
	o.flagPrefix = o.Prefix
	fs.StringVar(&o.Prefix, "etcd-prefix", o.Prefix, "prefix of all keys in the external etcd; servers that share an etcd must have different prefixes, none below another, unless they are replicas of each other")
	fs.StringVar(&o.CAFile, "etcd-cafile", o.CAFile, "PEM file of the CAs of the external etcd's certificates")
	fs.StringVar(&o.CertFile, "etcd-certfile", o.CertFile, "PEM file of the client certificate for the external etcd")
	fs.StringVar(&o.KeyFile, "etcd-keyfile", o.KeyFile, "PEM file of the private key of --etcd-certfile")
	fs.DurationVar(&o.CompactionInterval, "etcd-compaction-interval", o.CompactionInterval, "interval of compactions, and how long history is kept; 0 disables compaction")
	fs.Int64Var(&o.QuotaBytes, "etcd-quota-backend-bytes", o.QuotaBytes, "database size in bytes at which the embedded etcd rejects writes")
	fs.BoolVar(&o.UnsafeNoFsync, "unsafe-no-fsync", o.UnsafeNoFsync, "disable syncing the embedded etcd's writes to disk; for tests only, data is lost if the machine crashes")
}

// Validate returns the errors in o.
func (o *Options) Validate() []error {
	var errs []error
	if (o.CertFile == "") != (o.KeyFile == "") {
		errs = append(errs, errors.New("--etcd-certfile and --etcd-keyfile must be specified together"))
	}
	if len(o.Servers) == 0 && (o.CAFile != "" || o.CertFile != "") {
		errs = append(errs, errors.New("--etcd-cafile, --etcd-certfile and --etcd-keyfile require an external etcd: specify --etcd-servers"))
	}
	if len(o.Servers) == 0 && o.DataDir == "" {
		errs = append(errs, errors.New("--data-dir is required for the embedded etcd"))
	}
	if err := validatePrefix(o.Prefix); err != nil {
		errs = append(errs, err)
	} else if len(o.Servers) == 0 && o.flagPrefix != "" && o.Prefix != o.flagPrefix {
		// Data below the other prefix would no longer be found.
		errs = append(errs, errors.New("--etcd-prefix requires an external etcd: omit it, or specify --etcd-servers"))
	}
	if o.CompactionInterval < 0 {
		errs = append(errs, fmt.Errorf("--etcd-compaction-interval %s is negative: use 0 to never compact", o.CompactionInterval))
	}
	if o.QuotaBytes <= 0 {
		errs = append(errs, fmt.Errorf("--etcd-quota-backend-bytes %d is not positive", o.QuotaBytes))
	}
	return errs
}

func validatePrefix(prefix string) error {
	ok := prefix != "/" && strings.HasPrefix(prefix, "/") && path.Clean(prefix) == prefix
	for _, r := range prefix {
		ok = ok && (r == '/' || r == '.' || r == '-' || r == '_' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9')
	}
	if !ok {
		return fmt.Errorf("--etcd-prefix %q is not of the form /name or /name/name: use letters, digits, dots, hyphens and underscores, without a slash at the end", prefix)
	}
	return nil
}

// Handle is an open etcd, embedded or external.
type Handle struct {
	client *kubernetes.Client
	// embedded is nil if the etcd is external.
	embedded *Server
	stop     func()
	// where is the name in messages, and prefix is the prefix of all keys.
	where, prefix string
}

// Open starts the embedded etcd, or connects to the external one. ctx limits the start only; Stop ends it.
func (o *Options) Open(ctx context.Context) (*Handle, error) {
	if len(o.Servers) > 0 {
		client, err := o.connect(ctx)
		if err != nil {
			return nil, err
		}
		return &Handle{client: client, stop: func() { _ = client.Close() }, where: "the etcd at " + strings.Join(o.Servers, ", "), prefix: o.Prefix}, nil
	}
	dir := Directory(o.DataDir)
	s, err := Start(ctx, Config{DataDir: dir, UnsafeNoFsync: o.UnsafeNoFsync, QuotaBytes: o.QuotaBytes})
	if err != nil {
		return nil, fmt.Errorf("starting the embedded etcd: %w", err)
	}
	return &Handle{client: s.Client(), embedded: s, stop: s.Stop, where: "the data directory " + dir, prefix: o.Prefix}, nil
}

// Client returns the client that all resources of the process share.
func (h *Handle) Client() *kubernetes.Client { return h.client }

// Prefix returns the prefix of all keys.
func (h *Handle) Prefix() string { return h.prefix }

// Run returns nil when ctx ends, and an error if the embedded etcd stops before.
func (h *Handle) Run(ctx context.Context) error {
	var stopped <-chan struct{} // never closed for an external etcd
	if h.embedded != nil {
		stopped = h.embedded.Done()
	}
	select {
	case <-stopped:
		return errors.New("the embedded etcd stopped unexpectedly: see its last log messages; is the disk full?")
	case <-ctx.Done():
		return nil
	}
}

// Stop closes the client and stops the embedded etcd.
func (h *Handle) Stop() { h.stop() }
