package serving

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/shardplane/shardplane/pkg/serving/connections"
	"github.com/shardplane/shardplane/pkg/serving/features"
	"github.com/shardplane/shardplane/pkg/serving/ledger"
)

// ProfilesPrefix is the path prefix of process profiles.
const ProfilesPrefix = "/debug/pprof/"

// Options are the options of every server. AddFlags describes them.
type Options struct {
	BindAddress       string
	SecurePort        int
	TLSCertFile       string
	TLSPrivateKeyFile string
	CipherSuites      []string
	MinTLSVersion     string
	SNICertKeys       []cliflag.NamedCertKey
	MaxStreams        int
	Audit             AuditOptions
	Limits            ledger.Limits
	FeatureGates      features.Gates
}

// defaultMaxStreams is sufficient for a busy controller. Go's default is 250.
//
//reference:limit connection --http2-max-streams-per-connection | concurrent requests | others wait
const defaultMaxStreams = 1000

// NewOptions returns the default options of a server.
func NewOptions(port int) Options {
	return Options{BindAddress: "127.0.0.1", SecurePort: port, MaxStreams: defaultMaxStreams, Audit: NewAuditOptions(), Limits: ledger.Limits{
		ledger.AnonymousConnections: 4000, ledger.ConnectionsPerUser: 1000,
	}, FeatureGates: features.Gates{}}
}

// AddFlags adds all flags except those of Audit.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.BindAddress, "bind-address", o.BindAddress, "IP address to listen on")
	fs.IntVar(&o.SecurePort, "secure-port", o.SecurePort, "HTTPS port; 0 selects a free port")
	fs.StringVar(&o.TLSCertFile, "tls-cert-file", o.TLSCertFile, "PEM file of the serving certificate, including intermediates; reloaded when it changes")
	fs.StringVar(&o.TLSPrivateKeyFile, "tls-private-key-file", o.TLSPrivateKeyFile, "PEM file of the private key of --tls-cert-file")
	fs.StringSliceVar(&o.CipherSuites, "tls-cipher-suites", o.CipherSuites, "comma-separated list of cipher suites for TLS 1.2; Go's default if empty\nPreferred: "+strings.Join(cliflag.PreferredTLSCipherNames(), ", ")+"\nInsecure: "+strings.Join(cliflag.InsecureTLSCipherNames(), ", "))
	fs.StringVar(&o.MinTLSVersion, "tls-min-version", o.MinTLSVersion, "minimum TLS version: "+strings.Join(cliflag.TLSPossibleVersions(), ", ")+"; VersionTLS12 if empty")
	fs.IntVar(&o.MaxStreams, "http2-max-streams-per-connection", o.MaxStreams, "maximum number of concurrent requests, including watches, in one HTTP/2 connection")
	fs.Var(cliflag.NewNamedCertKeyArray(&o.SNICertKeys), "tls-sni-cert-key", "certificate and key for other server names (SNI), as cert.pem,key.pem or cert.pem,key.pem:*.example.com,example.com; by default, for the names in the certificate. May be repeated; reloaded when the files change")
	o.Limits.AddFlags(fs)
	fs.StringToStringVar((*map[string]string)(&o.FeatureGates), "feature-gates", o.FeatureGates, "feature gates, as Name=true,Other=false; except for the front-proxy, also those of Kubernetes, which apply to the process\n"+features.Known()+
		"\nShardedListAndWatch and WatchList are enabled by default, and DetectCacheInconsistency, which reads all objects every five minutes, is disabled by default")
}

// Validate returns all errors in o, in the order of its fields.
func (o *Options) Validate() []error {
	var errs []error
	if net.ParseIP(o.BindAddress) == nil {
		errs = append(errs, fmt.Errorf("--bind-address %q is not an IP address", o.BindAddress))
	}
	if o.SecurePort < 0 || o.SecurePort > 65535 {
		errs = append(errs, fmt.Errorf("--secure-port %d is not between 0 and 65535", o.SecurePort))
	}
	if o.TLSCertFile == "" {
		errs = append(errs, errors.New("--tls-cert-file is required"))
	}
	if o.TLSPrivateKeyFile == "" {
		errs = append(errs, errors.New("--tls-private-key-file is required"))
	}
	if _, err := cliflag.TLSCipherSuites(o.CipherSuites); err != nil {
		errs = append(errs, fmt.Errorf("--tls-cipher-suites: %w", err))
	}
	if _, err := cliflag.TLSVersion(o.MinTLSVersion); err != nil {
		errs = append(errs, fmt.Errorf("--tls-min-version: %w", err))
	}
	if o.MaxStreams < 1 {
		errs = append(errs, fmt.Errorf("--http2-max-streams-per-connection %d is less than 1", o.MaxStreams))
	}
	if _, err := o.FeatureGates.Others(); err != nil {
		errs = append(errs, err)
	}
	return append(errs, o.Audit.Validate()...)
}

// Listener is an open port and its TLS configuration. Upstream's server closes it when it stops.
type Listener struct {
	*genericapiserver.SecureServingInfo
	// URL is the URL for local clients.
	URL string
}

// Listen reads the certificates and opens the port. The caller must close or serve the listener.
// registerer is for metrics of connections and may be nil.
func (o *Options) Listen(registerer prometheus.Registerer) (*Listener, error) {
	cert, err := dynamiccertificates.NewDynamicServingContentFromFiles("serving-cert", o.TLSCertFile, o.TLSPrivateKeyFile)
	if err != nil {
		return nil, fmt.Errorf("reading the serving certificate of --tls-cert-file and --tls-private-key-file: %w", err)
	}
	info := &genericapiserver.SecureServingInfo{Cert: cert, HTTP2MaxStreamsPerConnection: o.MaxStreams}
	if len(o.CipherSuites) > 0 {
		if info.CipherSuites, err = cliflag.TLSCipherSuites(o.CipherSuites); err != nil {
			return nil, fmt.Errorf("--tls-cipher-suites: %w", err)
		}
	}
	if info.MinTLSVersion, err = cliflag.TLSVersion(o.MinTLSVersion); err != nil {
		return nil, fmt.Errorf("--tls-min-version: %w", err)
	}
	for _, named := range o.SNICertKeys {
		content, err := dynamiccertificates.NewDynamicSNIContentFromFiles("sni-serving-cert", named.CertFile, named.KeyFile, named.Names...)
		if err != nil {
			return nil, fmt.Errorf("reading the certificate of --tls-sni-cert-key %s,%s: %w", named.CertFile, named.KeyFile, err)
		}
		info.SNICerts = append(info.SNICerts, content)
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
	info.Listener = connections.NewListener(info.Listener, o.Limits, registerer)
	return &Listener{SecureServingInfo: info, URL: "https://" + net.JoinHostPort(o.BindAddress, port)}, nil
}

// Close closes the port.
func (l *Listener) Close() { _ = l.Listener.Close() }

// APIOptions are the options of servers with Kubernetes APIs.
type APIOptions struct {
	Options
	// MaxRequestsInFlight and MaxMutatingRequestsInFlight limit concurrent requests other than watches (429).
	//
	//reference:limit server --max-requests-inflight | concurrent requests that read | 429
	//reference:limit server --max-mutating-requests-inflight | concurrent requests that write | 429
	MaxRequestsInFlight         int
	MaxMutatingRequestsInFlight int
}

// NewAPIOptions returns the default options of a server.
func NewAPIOptions(port int) APIOptions {
	o := APIOptions{Options: NewOptions(port), MaxRequestsInFlight: 3000, MaxMutatingRequestsInFlight: 1000}
	o.Limits[ledger.BodyBytes], o.Limits[ledger.BodyBytesPerUser] = 512<<20, 128<<20
	return o
}

// AddFlags adds all flags except those of Audit.
func (o *APIOptions) AddFlags(fs *pflag.FlagSet) {
	o.Options.AddFlags(fs)
	fs.IntVar(&o.MaxRequestsInFlight, "max-requests-inflight", o.MaxRequestsInFlight, "maximum number of concurrent non-mutating requests, except watches and requests that are queued or wait for a webhook; others are rejected with 429")
	fs.IntVar(&o.MaxMutatingRequestsInFlight, "max-mutating-requests-inflight", o.MaxMutatingRequestsInFlight, "maximum number of concurrent mutating requests, except those that are queued or wait for a webhook; others are rejected with 429")
}

// Validate returns all errors in o, in the order of its fields.
func (o *APIOptions) Validate() []error {
	errs := o.Options.Validate()
	if o.MaxRequestsInFlight < 0 || o.MaxMutatingRequestsInFlight < 0 {
		errs = append(errs, errors.New("--max-requests-inflight and --max-mutating-requests-inflight must not be negative"))
	}
	return errs
}
