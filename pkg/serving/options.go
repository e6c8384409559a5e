package serving

import (
	"errors"
	"fmt"
	"net"
	"strconv"

	"github.com/spf13/pflag"

	"github.com/shardplane/shardplane/pkg/authn"
)

// Options are the options of a server's secure listener.
type Options struct {
	// BindAddress and SecurePort are where the server listens; port 0 takes any
	// free port.
	BindAddress string
	SecurePort  int
	// Listener is used instead of BindAddress and SecurePort where set; tests
	// hand in a listener whose port they know before the server starts.
	Listener net.Listener
	// TLSCertFile and TLSPrivateKeyFile are the serving certificate. They are
	// read again when they change.
	TLSCertFile       string
	TLSPrivateKeyFile string
	// TLS are the finer choices about TLS.
	TLS TLSOptions
	// Audit says which requests are recorded, and where.
	Audit AuditOptions
	// MaxRequestsInFlight and MaxMutatingRequestsInFlight bound how many
	// requests other than watches are served at a time; more get 429.
	MaxRequestsInFlight         int
	MaxMutatingRequestsInFlight int
	// Authentication says who may connect.
	Authentication authn.Options
	// Profiling serves /debug/pprof.
	Profiling bool
	// FeatureGates switches Kubernetes' feature gates, as in "Gate=true".
	FeatureGates map[string]string
}

// NewOptions returns the defaults for a server on port.
func NewOptions(port int) *Options {
	return &Options{
		BindAddress:                 "127.0.0.1",
		SecurePort:                  port,
		MaxRequestsInFlight:         3000,
		MaxMutatingRequestsInFlight: 1000,
		TLS:                         NewTLSOptions(),
		Authentication:              authn.NewOptions(),
		Audit:                       NewAuditOptions(),
		Profiling:                   true,
		FeatureGates:                map[string]string{},
	}
}

// AddFlags adds the flags of o to fs.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.BindAddress, "bind-address", o.BindAddress, "IP address to listen on")
	fs.IntVar(&o.SecurePort, "secure-port", o.SecurePort, "port to serve HTTPS on; 0 takes any free port")
	fs.StringVar(&o.TLSCertFile, "tls-cert-file", o.TLSCertFile, "PEM file of the serving certificate, intermediates included; read again when it changes")
	fs.StringVar(&o.TLSPrivateKeyFile, "tls-private-key-file", o.TLSPrivateKeyFile, "PEM file of the private key of --tls-cert-file")
	fs.IntVar(&o.MaxRequestsInFlight, "max-requests-inflight", o.MaxRequestsInFlight, "reading requests served at a time, watches not counted; more are answered with 429")
	fs.IntVar(&o.MaxMutatingRequestsInFlight, "max-mutating-requests-inflight", o.MaxMutatingRequestsInFlight, "writing requests served at a time; more are answered with 429")
	AddProfilingFlag(fs, &o.Profiling)
	fs.StringToStringVar(&o.FeatureGates, "feature-gates", o.FeatureGates, "Kubernetes feature gates of this process, as Gate=true,Other=false; ShardedListAndWatch and WatchList are on unless switched off here")
	o.TLS.AddFlags(fs)
	o.Audit.AddFlags(fs)
	o.Authentication.AddFlags(fs)
}

// AddProfilingFlag adds the flag that every server has.
func AddProfilingFlag(fs *pflag.FlagSet, profiling *bool) {
	fs.BoolVar(profiling, "profiling", *profiling, "serve profiles of this process at /debug/pprof, to members of system:masters and system:kcp:admin only")
}

// Validate returns what is wrong with o.
func (o *Options) Validate() []error {
	errs := append(o.Authentication.Validate(), o.TLS.Validate()...)
	errs = append(errs, o.Audit.Validate()...)
	if o.TLSCertFile == "" || o.TLSPrivateKeyFile == "" {
		errs = append(errs, errors.New("--tls-cert-file and --tls-private-key-file are required: all requests are served over TLS"))
	}
	if o.SecurePort < 0 || o.SecurePort > 65535 {
		errs = append(errs, fmt.Errorf("--secure-port %d is not between 0 and 65535", o.SecurePort))
	}
	if net.ParseIP(o.BindAddress) == nil {
		errs = append(errs, fmt.Errorf("--bind-address %q is not an IP address", o.BindAddress))
	}
	if o.MaxRequestsInFlight < 0 || o.MaxMutatingRequestsInFlight < 0 {
		errs = append(errs, errors.New("--max-requests-inflight and --max-mutating-requests-inflight must not be negative"))
	}
	return errs
}

// Listen opens Listener where the caller gave none.
func (o *Options) Listen() error {
	if o.Listener != nil {
		return nil
	}
	address := net.JoinHostPort(o.BindAddress, strconv.Itoa(o.SecurePort))
	listener, err := net.Listen("tcp", address) //nolint:noctx // binding a local port does not wait
	if err != nil {
		return fmt.Errorf("listening on %s: %w (stop the process that uses the port, or choose another with --secure-port)", address, err)
	}
	o.Listener = listener
	return nil
}

// URL is where the server is reached from its own machine, once it listens.
func (o *Options) URL() string {
	port := o.SecurePort
	if o.Listener != nil {
		if address, ok := o.Listener.Addr().(*net.TCPAddr); ok {
			port = address.Port
		}
	}
	return "https://" + net.JoinHostPort(o.BindAddress, strconv.Itoa(port))
}
