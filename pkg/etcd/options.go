package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
)

// Options specify where a server stores its data: in an embedded etcd or, if Servers are set, in an external cluster.
type Options struct {
	// DataDir is the server's data directory. The data of the embedded etcd is in the subdirectory "etcd".
	DataDir string
	// Servers are the URLs of an external etcd cluster.
	Servers []string
	// Prefix is the prefix of all keys, with one or more segments: /name.
	Prefix string
	// CAFile, CertFile and KeyFile are for TLS with the external cluster.
	CAFile, CertFile, KeyFile string
	// CompactionInterval is how long history is kept; 0 disables compaction. The storage layer compacts, not etcd.
	CompactionInterval time.Duration
	// QuotaBytes is the database size at which the embedded etcd rejects writes.
	QuotaBytes int64
	// UnsafeNoFsync makes the embedded etcd lose acknowledged writes when the machine crashes. It is for tests.
	UnsafeNoFsync bool

	// flagPrefix is the default of the flag for Prefix.
	flagPrefix string
}

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
	fs.DurationVar(&o.CompactionInterval, "etcd-compaction-interval", o.CompactionInterval, "interval of compactions, and time for which history is kept; 0 disables compaction")
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

var validPrefix = regexp.MustCompile(`^(/[a-zA-Z0-9._-]+)+$`)

func validatePrefix(prefix string) error {
	if !validPrefix.MatchString(prefix) || path.Clean(prefix) != prefix {
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

const (
	// The keep-alive settings detect a dead server within 40 seconds.
	keepAliveTime    = 30 * time.Second
	keepAliveTimeout = 10 * time.Second

	connectTimeout = 20 * time.Second

	probeTimeout = 2 * time.Second

	// maxMessageSize allows lists of many large objects; it is also the default limit of etcd's client.
	maxMessageSize = 1<<31 - 1
)

func (o *Options) tlsConfig() (*tls.Config, error) {
	if o.CAFile == "" && o.CertFile == "" {
		return nil, nil // the URL determines whether TLS is used
	}
	info := transport.TLSInfo{CertFile: o.CertFile, KeyFile: o.KeyFile, TrustedCAFile: o.CAFile}
	cfg, err := info.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("TLS files for etcd (--etcd-cafile, --etcd-certfile, --etcd-keyfile): %w", err)
	}
	return cfg, nil
}

// connect connects to an external etcd cluster and returns after its first response, which ctx limits.
func (o *Options) connect(ctx context.Context) (*kubernetes.Client, error) {
	for _, server := range o.Servers {
		if !strings.HasPrefix(server, "http://") && !strings.HasPrefix(server, "https://") && !strings.HasPrefix(server, "unix://") {
			return nil, fmt.Errorf("etcd server %q: --etcd-servers requires URLs such as https://host:2379", server)
		}
	}
	tlsConfig, err := o.tlsConfig()
	if err != nil {
		return nil, err
	}
	client, err := clientv3.New(clientv3.Config{
		Context:              context.WithoutCancel(ctx),
		Endpoints:            o.Servers,
		TLS:                  tlsConfig,
		DialTimeout:          connectTimeout,
		DialKeepAliveTime:    keepAliveTime,
		DialKeepAliveTimeout: keepAliveTimeout,
		MaxCallRecvMsgSize:   maxMessageSize,
		Logger:               newLogger(ctx).Named("etcd-client"),
	})
	if err != nil {
		return nil, fmt.Errorf("cannot connect to etcd at %s: %w", strings.Join(o.Servers, ", "), err)
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if _, err := client.Get(ctx, "health"); err != nil {
		why := make([]error, 0, len(o.Servers)+1)
		for _, server := range o.Servers {
			why = append(why, probe(context.WithoutCancel(ctx), server, tlsConfig))
		}
		return nil, errors.Join(
			fmt.Errorf("etcd at %s does not respond: check --etcd-servers and the TLS files: %w", strings.Join(o.Servers, ", "), errors.Join(append(why, err)...)),
			client.Close())
	}
	return wrapClient(client), nil
}

// probe returns the reason why a server does not respond, if it finds one. The client only reports its timeout.
func probe(ctx context.Context, server string, tlsConfig *tls.Config) error {
	u, err := url.Parse(server)
	if err != nil || u.Scheme != "https" {
		return nil // the client's own error contains as much
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	conn, err := (&tls.Dialer{Config: tlsConfig}).DialContext(ctx, "tcp", u.Host)
	if err == nil {
		// The server rejects a client certificate only on the first read; otherwise it waits for a request.
		defer func() { _ = conn.Close() }()
		if err = conn.SetReadDeadline(time.Now().Add(probeTimeout)); err == nil {
			_, err = conn.Read(make([]byte, 1))
		}
	}
	if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return fmt.Errorf("%s: %w", server, err)
}
