package frontproxy

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/spf13/pflag"

	"github.com/shardplane/shardplane/pkg/authn"
	"github.com/shardplane/shardplane/pkg/authn/serviceaccount"
	"github.com/shardplane/shardplane/pkg/serving"
)

const (
	defaultAddress       = "127.0.0.1"
	defaultPort          = 6443
	defaultIndexPatience = 500 * time.Millisecond
	maxIndexPatience     = 10 * time.Second
)

// Options are the front-proxy's settings as a person gives them on the command
// line. Complete makes them usable.
type Options struct {
	// BindAddress and SecurePort are where the front-proxy listens; port 0
	// takes any free port.
	BindAddress string
	SecurePort  int
	// Listener is used instead of BindAddress and SecurePort where set.
	Listener net.Listener
	// TLSCertFile and TLSPrivateKeyFile are the serving certificate.
	TLSCertFile, TLSPrivateKeyFile string
	// TLS are the finer choices about TLS.
	TLS serving.TLSOptions
	// Audit says which of the requests that the front-proxy answers itself are
	// recorded, and where.
	Audit serving.AuditOptions
	// Authentication says who may connect.
	Authentication authn.Options
	// Profiling serves /debug/pprof.
	Profiling bool
	// PassOnGroups and DropGroups decide which groups users keep on their way to
	// a shard; see authn.GroupFilter.
	PassOnGroups, DropGroups []string
	// RootKubeconfig leads to the root shard, as a member of system:masters.
	RootKubeconfig string
	// ShardCAFile holds the CAs of the shards' serving certificates.
	ShardCAFile string
	// ShardClientCertFile and ShardClientKeyFile are the certificate for
	// reading the index from shards; its group is system:masters.
	ShardClientCertFile, ShardClientKeyFile string
	// ProxyClientCertFile and ProxyClientKeyFile are the certificate with which
	// requests are forwarded: the shards' request header CA signed it.
	ProxyClientCertFile, ProxyClientKeyFile string
	// IndexPatience is for how long a request for an unknown logical cluster
	// waits for the index to learn of it.
	IndexPatience time.Duration
}

// NewOptions returns the defaults.
func NewOptions() *Options {
	return &Options{
		BindAddress: defaultAddress, SecurePort: defaultPort, IndexPatience: defaultIndexPatience, Profiling: true,
		TLS: serving.NewTLSOptions(), Audit: serving.NewAuditOptions(), Authentication: authn.NewOptions(), DropGroups: authn.DefaultDropGroups(),
	}
}

// AddFlags adds the flags of all options to fs.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.BindAddress, "bind-address", o.BindAddress, "IP address to listen on")
	fs.IntVar(&o.SecurePort, "secure-port", o.SecurePort, "port to serve HTTPS on; 0 takes any free port")
	fs.StringVar(&o.TLSCertFile, "tls-cert-file", o.TLSCertFile, "PEM file of the serving certificate, intermediates included; read again when it changes")
	fs.StringVar(&o.TLSPrivateKeyFile, "tls-private-key-file", o.TLSPrivateKeyFile, "PEM file of the private key of --tls-cert-file")
	o.TLS.AddFlags(fs)
	o.Audit.AddFlags(fs)
	serving.AddProfilingFlag(fs, &o.Profiling)
	o.Authentication.AddUserFlags(fs)
	fs.StringSliceVar(&o.PassOnGroups, "authentication-pass-on-groups", o.PassOnGroups, "groups that users keep when their requests are forwarded to a shard, \"prefix*\" for all that begin so; empty for all")
	fs.StringSliceVar(&o.DropGroups, "authentication-drop-groups", o.DropGroups, "groups that are taken from users before their requests are forwarded to a shard, whatever --authentication-pass-on-groups says; \"prefix*\" for all that begin so")
	fs.StringVar(&o.RootKubeconfig, "root-kubeconfig", o.RootKubeconfig, "kubeconfig for the root shard whose user is in system:masters; the Shard objects are read there")
	fs.StringVar(&o.ShardCAFile, "shard-ca-file", o.ShardCAFile, "PEM file of the CAs of the shards' serving certificates")
	fs.StringVar(&o.ShardClientCertFile, "shard-client-cert-file", o.ShardClientCertFile, "PEM file of the client certificate, in system:masters, with which the index is read from the shards")
	fs.StringVar(&o.ShardClientKeyFile, "shard-client-key-file", o.ShardClientKeyFile, "PEM file of the private key of --shard-client-cert-file")
	fs.StringVar(&o.ProxyClientCertFile, "proxy-client-cert-file", o.ProxyClientCertFile, "PEM file of the client certificate, signed by the shards' request header CA, with which requests are forwarded")
	fs.StringVar(&o.ProxyClientKeyFile, "proxy-client-key-file", o.ProxyClientKeyFile, "PEM file of the private key of --proxy-client-cert-file")
	fs.DurationVar(&o.IndexPatience, "index-patience", o.IndexPatience, "for how long a request for an unknown logical cluster waits for it to appear, before it is refused")
}

// completedOptions can only be made by Complete.
type completedOptions struct {
	*Options
}

// CompletedOptions are options whose defaults are filled in.
type CompletedOptions struct {
	*completedOptions
}

// Complete fills in what is not set.
func (o *Options) Complete() CompletedOptions {
	c := *o
	if c.BindAddress == "" {
		c.BindAddress = defaultAddress
	}
	return CompletedOptions{&completedOptions{Options: &c}}
}

// Validate says what is wrong with the options, all of it, naming the flags.
func (o CompletedOptions) Validate() error {
	var errs []error
	for _, required := range []struct{ flag, value, why string }{
		{"tls-cert-file", o.TLSCertFile, "all requests are served over TLS"},
		{"tls-private-key-file", o.TLSPrivateKeyFile, "all requests are served over TLS"},
		{"root-kubeconfig", o.RootKubeconfig, "the shards are found through the root shard"},
		{"shard-ca-file", o.ShardCAFile, "the shards could not be told from impostors without it"},
		{"shard-client-cert-file", o.ShardClientCertFile, "the index is read from the shards with it"},
		{"shard-client-key-file", o.ShardClientKeyFile, "the index is read from the shards with it"},
		{"proxy-client-cert-file", o.ProxyClientCertFile, "the shards believe the front-proxy's word about users because of it"},
		{"proxy-client-key-file", o.ProxyClientKeyFile, "the shards believe the front-proxy's word about users because of it"},
	} {
		if required.value == "" {
			errs = append(errs, fmt.Errorf("--%s is required: %s", required.flag, required.why))
		}
	}
	errs = append(errs, o.Authentication.Validate()...)
	errs = append(errs, o.TLS.Validate()...)
	errs = append(errs, o.Audit.Validate()...)
	if net.ParseIP(o.BindAddress) == nil {
		errs = append(errs, fmt.Errorf("--bind-address %q is not an IP address", o.BindAddress))
	}
	if o.SecurePort < 0 || o.SecurePort > 65535 {
		errs = append(errs, fmt.Errorf("--secure-port %d is not between 0 and 65535", o.SecurePort))
	}
	if o.IndexPatience < 0 || o.IndexPatience > maxIndexPatience {
		errs = append(errs, fmt.Errorf("--index-patience %s is not between 0 and %s", o.IndexPatience, maxIndexPatience))
	}
	return errors.Join(errs...)
}

// authentication returns what tells who a request is from. where finds the
// shards that hold a logical cluster, and with it its service accounts.
func (o CompletedOptions) authentication(where serviceaccount.Where) (*authn.Authentication, error) {
	options := o.Authentication
	options.Accounts = serviceaccount.NewRemote(where)
	return authn.New(options)
}

// listen opens the port, unless the caller gave a listener.
func (o CompletedOptions) listen() (net.Listener, error) {
	if o.Listener != nil {
		return o.Listener, nil
	}
	address := net.JoinHostPort(o.BindAddress, strconv.Itoa(o.SecurePort))
	listener, err := net.Listen("tcp", address) //nolint:noctx // binding a local port does not wait
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w (stop the process that uses the port, or choose another with --secure-port)", address, err)
	}
	return listener, nil
}
