package serving

import (
	"errors"
	"fmt"
	"net"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"

	"github.com/shardplane/shardplane/pkg/serving/bodies"
	"github.com/shardplane/shardplane/pkg/serving/connections"
	"github.com/shardplane/shardplane/pkg/serving/features"
	"github.com/shardplane/shardplane/pkg/serving/ledger"
)

// ProfilesPrefix is where servers have profiles of their process, below a name each.
const ProfilesPrefix = "/debug/pprof/"

// Options are what every server has: a listener with its certificates and an audit
// log.
type Options struct {
	// BindAddress and SecurePort are where the server listens; port 0 takes any
	// free port.
	BindAddress string
	SecurePort  int
	// TLSCertFile and TLSPrivateKeyFile are the serving certificate. They are
	// read again when they change.
	TLSCertFile       string
	TLSPrivateKeyFile string
	// TLS are the finer choices about TLS.
	TLS TLSOptions
	// Audit says which requests are recorded, and where.
	Audit AuditOptions
	// Bodies say how long bodies of requests take at most.
	Bodies bodies.Rate
	// Limits bound what logical clusters and users hold at a time.
	Limits ledger.Limits
	// FeatureGates switch features of Shardplane, and of Kubernetes where the server serves its API.
	FeatureGates features.Gates
}

// NewOptions returns the defaults for a server on port.
func NewOptions(port int) Options {
	return Options{BindAddress: "127.0.0.1", SecurePort: port, TLS: NewTLSOptions(), Audit: NewAuditOptions(), Bodies: bodies.NewRate(), Limits: ledger.Limits{
		ledger.AnonymousConnections: 4000, ledger.ConnectionsPerUser: 1000,
	}, FeatureGates: features.Gates{}}
}

// AddFlags adds the flags of o to fs, but for those of Audit.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.BindAddress, "bind-address", o.BindAddress, "IP address to listen on")
	fs.IntVar(&o.SecurePort, "secure-port", o.SecurePort, "port to serve HTTPS on; 0 takes any free port")
	fs.StringVar(&o.TLSCertFile, "tls-cert-file", o.TLSCertFile, "PEM file of the serving certificate, intermediates included; read again when it changes")
	fs.StringVar(&o.TLSPrivateKeyFile, "tls-private-key-file", o.TLSPrivateKeyFile, "PEM file of the private key of --tls-cert-file")
	o.TLS.AddFlags(fs)
	o.Limits.AddFlags(fs)
	fs.StringToStringVar((*map[string]string)(&o.FeatureGates), "feature-gates", o.FeatureGates, "features to switch, as Name=true,Other=false: "+features.Known()+
		"; and, except for the front-proxy, those of Kubernetes, which are of the process: ShardedListAndWatch and WatchList are on unless switched off here, and DetectCacheInconsistency, which reads all that is stored every five minutes, is off unless switched on")
}

// Validate returns what is wrong with o, in the order of its fields.
func (o *Options) Validate() []error {
	var errs []error
	if net.ParseIP(o.BindAddress) == nil {
		errs = append(errs, fmt.Errorf("--bind-address %q is not an IP address", o.BindAddress))
	}
	if o.SecurePort < 0 || o.SecurePort > 65535 {
		errs = append(errs, fmt.Errorf("--secure-port %d is not between 0 and 65535", o.SecurePort))
	}
	if o.TLSCertFile == "" {
		errs = append(errs, errors.New("--tls-cert-file is required: all requests are served over TLS"))
	}
	if o.TLSPrivateKeyFile == "" {
		errs = append(errs, errors.New("--tls-private-key-file is required: all requests are served over TLS"))
	}
	errs = append(errs, o.TLS.Validate()...)
	if _, _, err := o.FeatureGates.Split(); err != nil {
		errs = append(errs, err)
	}
	return append(errs, o.Audit.Validate()...)
}

// Listener is an open port and how it is served. It is upstream's, which serves
// it and closes it when it stops.
type Listener struct {
	*genericapiserver.SecureServingInfo
	// URL is where the server is reached from its own machine.
	URL string
}

// Listen reads the certificates and opens the port. The caller closes the
// listener, or serves it. The metrics of connections go to registerer, which may be nil.
func (o *Options) Listen(registerer prometheus.Registerer) (*Listener, error) {
	cert, err := dynamiccertificates.NewDynamicServingContentFromFiles("serving-cert", o.TLSCertFile, o.TLSPrivateKeyFile)
	if err != nil {
		return nil, fmt.Errorf("reading the serving certificate of --tls-cert-file and --tls-private-key-file: %w", err)
	}
	info := &genericapiserver.SecureServingInfo{Cert: cert}
	if err := o.TLS.ApplyTo(info); err != nil {
		return nil, err
	}
	address := net.JoinHostPort(o.BindAddress, strconv.Itoa(o.SecurePort))
	if info.Listener, err = net.Listen("tcp", address); err != nil { //nolint:noctx // binding a local port does not wait
		return nil, fmt.Errorf("listening on %s: %w (stop the process that uses the port, or choose another with --secure-port)", address, err)
	}
	_, port, err := net.SplitHostPort(info.Listener.Addr().String())
	if err != nil {
		_ = info.Listener.Close()
		return nil, fmt.Errorf("listening on %s: %w", address, err)
	}
	info.Listener = connections.New(info.Listener, o.Limits, registerer)
	return &Listener{SecureServingInfo: info, URL: "https://" + net.JoinHostPort(o.BindAddress, port)}, nil
}

// Close gives the port back.
func (l *Listener) Close() { _ = l.Listener.Close() }

// APIOptions are what servers of a Kubernetes API have beyond that.
type APIOptions struct {
	Options
	// MaxRequestsInFlight and MaxMutatingRequestsInFlight bound how many
	// requests other than watches are served at a time; more get 429.
	MaxRequestsInFlight         int
	MaxMutatingRequestsInFlight int
}

// NewAPIOptions returns the defaults for a server on port.
func NewAPIOptions(port int) APIOptions {
	o := APIOptions{Options: NewOptions(port), MaxRequestsInFlight: 3000, MaxMutatingRequestsInFlight: 1000}
	o.Limits[ledger.BodyBytes], o.Limits[ledger.BodyBytesPerUser] = 512<<20, 128<<20
	return o
}

// AddFlags adds the flags of o to fs, but for those of Audit.
func (o *APIOptions) AddFlags(fs *pflag.FlagSet) {
	o.Options.AddFlags(fs)
	fs.IntVar(&o.MaxRequestsInFlight, "max-requests-inflight", o.MaxRequestsInFlight, "reading requests executed at a time, watches and what waits for its turn or for a webhook not counted; more are answered with 429")
	fs.IntVar(&o.MaxMutatingRequestsInFlight, "max-mutating-requests-inflight", o.MaxMutatingRequestsInFlight, "writing requests executed at a time, what waits for its turn or for a webhook not counted; more are answered with 429")
}

// Validate returns what is wrong with o, in the order of its fields.
func (o *APIOptions) Validate() []error {
	errs := o.Options.Validate()
	if o.MaxRequestsInFlight < 0 || o.MaxMutatingRequestsInFlight < 0 {
		errs = append(errs, errors.New("--max-requests-inflight and --max-mutating-requests-inflight must not be negative"))
	}
	return errs
}
