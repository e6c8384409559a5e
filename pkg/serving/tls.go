package serving

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	cliflag "k8s.io/component-base/cli/flag"
)

// TLSOptions are what kube-apiserver lets its operators choose about TLS, by the
// same flags.
type TLSOptions struct {
	// CipherSuites are the allowed cipher suites by Go's names; Go's own choice
	// if empty. TLS 1.3 has no choice of suites.
	CipherSuites []string
	// MinVersion is the oldest version spoken, as VersionTLS12; TLS 1.2 if empty.
	MinVersion string
	// SNICertKeys are certificates for clients that ask for other names. They
	// are read again when they change.
	SNICertKeys []cliflag.NamedCertKey
	// MaxStreams is how many requests one HTTP/2 connection carries at a time.
	MaxStreams int
}

// defaultMaxStreams is what a busy controller needs; Go's default is 250.
const defaultMaxStreams = 1000

// NewTLSOptions returns the defaults.
func NewTLSOptions() TLSOptions { return TLSOptions{MaxStreams: defaultMaxStreams} }

// AddFlags adds the flags of o to fs.
func (o *TLSOptions) AddFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&o.CipherSuites, "tls-cipher-suites", o.CipherSuites, "cipher suites allowed in TLS 1.2, as a comma-separated list; Go's choice if empty. Good: "+strings.Join(cliflag.PreferredTLSCipherNames(), ", ")+". Insecure: "+strings.Join(cliflag.InsecureTLSCipherNames(), ", "))
	fs.StringVar(&o.MinVersion, "tls-min-version", o.MinVersion, "oldest TLS version spoken: "+strings.Join(cliflag.TLSPossibleVersions(), ", ")+"; VersionTLS12 if empty")
	fs.IntVar(&o.MaxStreams, "http2-max-streams-per-connection", o.MaxStreams, "requests, watches included, that one HTTP/2 connection of a client carries at a time")
	fs.Var(cliflag.NewNamedCertKeyArray(&o.SNICertKeys), "tls-sni-cert-key", "certificate and key for clients that ask for another name (SNI), as cert.pem,key.pem or cert.pem,key.pem:*.example.com,example.com; names are taken from the certificate if none are given. May be repeated; read again when the files change")
}

// Validate returns what is wrong with o. It reads no files.
func (o *TLSOptions) Validate() []error {
	var errs []error
	if _, err := cliflag.TLSCipherSuites(o.CipherSuites); err != nil {
		errs = append(errs, fmt.Errorf("--tls-cipher-suites: %w", err))
	}
	if _, err := cliflag.TLSVersion(o.MinVersion); err != nil {
		errs = append(errs, fmt.Errorf("--tls-min-version: %w", err))
	}
	if o.MaxStreams < 1 {
		errs = append(errs, fmt.Errorf("--http2-max-streams-per-connection %d is less than 1", o.MaxStreams))
	}
	return errs
}

// ApplyTo sets what o says, and reads the certificates of --tls-sni-cert-key.
func (o *TLSOptions) ApplyTo(s *genericapiserver.SecureServingInfo) error {
	s.HTTP2MaxStreamsPerConnection = o.MaxStreams
	var err error
	if len(o.CipherSuites) > 0 {
		if s.CipherSuites, err = cliflag.TLSCipherSuites(o.CipherSuites); err != nil {
			return fmt.Errorf("--tls-cipher-suites: %w", err)
		}
	}
	if s.MinTLSVersion, err = cliflag.TLSVersion(o.MinVersion); err != nil {
		return fmt.Errorf("--tls-min-version: %w", err)
	}
	for _, named := range o.SNICertKeys {
		content, err := dynamiccertificates.NewDynamicSNIContentFromFiles("sni-serving-cert", named.CertFile, named.KeyFile, named.Names...)
		if err != nil {
			return fmt.Errorf("reading the certificate of --tls-sni-cert-key %s,%s: %w", named.CertFile, named.KeyFile, err)
		}
		s.SNICerts = append(s.SNICerts, content)
	}
	return nil
}
