package authn

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authentication/token/tokenfile"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
)

// The headers in which the front-proxy names the user to a shard.
const (
	HeaderUser        = "X-Remote-User"
	HeaderUID         = "X-Remote-Uid"
	HeaderGroup       = "X-Remote-Group"
	HeaderExtraPrefix = "X-Remote-Extra-"
)

// Options says which ways to authenticate a server accepts.
type Options struct {
	// ClientCAFile is a PEM bundle of the CAs whose client certificates are
	// accepted: common name is the user, organizations are the groups.
	ClientCAFile string
	// RequestHeaderCAFile is a PEM bundle of the CAs whose client certificates
	// may name any user in the X-Remote-* headers. Empty: nobody may.
	RequestHeaderCAFile string
	// RequestHeaderAllowedNames restricts those certificates to these common
	// names; empty allows any.
	RequestHeaderAllowedNames []string
	// DevTokens accepts the well-known tokens of the development cluster. Never
	// for production: everybody knows them.
	DevTokens bool
}

// AddFlags adds the flags of o to fs.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.ClientCAFile, "client-ca-file", o.ClientCAFile,
		"PEM file of the CAs whose client certificates are accepted; the common name is the user, the organizations are the groups")
	fs.StringVar(&o.RequestHeaderCAFile, "requestheader-client-ca-file", o.RequestHeaderCAFile,
		"PEM file of the CAs whose client certificates may name the user in X-Remote-* headers; only the front-proxy should hold such a certificate")
	fs.StringSliceVar(&o.RequestHeaderAllowedNames, "requestheader-allowed-names", o.RequestHeaderAllowedNames,
		"common names that certificates of --requestheader-client-ca-file must have; empty allows any")
	fs.BoolVar(&o.DevTokens, "dev-tokens", o.DevTokens,
		"accept the well-known bearer tokens user-1-token to user-5-token and admin-token; for development only")
}

// Validate returns what is wrong with o.
func (o *Options) Validate() []error {
	if o.ClientCAFile == "" {
		return []error{errors.New("--client-ca-file is required: nobody could authenticate without it")}
	}
	return nil
}

// Authentication is what a server needs to authenticate requests.
type Authentication struct {
	// Authenticator answers who a request is from. It is safe for concurrent use.
	Authenticator authenticator.Request
	// RequestHeader is nil where no front-proxy is trusted.
	RequestHeader *authenticatorfactory.RequestHeaderConfig
	// CAs are the providers of client CAs that the TLS listener announces. They
	// reload their files once the listener runs them.
	CAs []dynamiccertificates.CAContentProvider
}

// New builds the authenticator of o. It reads the CA files and fails where one
// cannot be read or holds no certificate.
func New(o Options) (*Authentication, error) {
	a := &Authentication{}
	var chain []authenticator.Request

	// The proxy's headers come before client certificates: a proxy that has a
	// certificate of the client CA too must not become the user.
	if o.RequestHeaderCAFile != "" {
		ca, err := dynamiccertificates.NewDynamicCAContentFromFile("request-header", o.RequestHeaderCAFile)
		if err != nil {
			return nil, fmt.Errorf("reading --requestheader-client-ca-file: %w", err)
		}
		a.CAs = append(a.CAs, ca)
		a.RequestHeader = requestHeaderConfig(ca, o.RequestHeaderAllowedNames)
		chain = append(chain, newRemembering(
			x509.NewDynamicCAVerifier(ca.VerifyOptions, anybody, a.RequestHeader.AllowedClientNames),
			ca.VerifyOptions,
			headerrequest.NewDynamic(
				a.RequestHeader.UsernameHeaders,
				a.RequestHeader.UIDHeaders,
				a.RequestHeader.GroupHeaders,
				a.RequestHeader.ExtraHeaderPrefixes,
			),
		))
	}
	if o.ClientCAFile != "" {
		ca, err := dynamiccertificates.NewDynamicCAContentFromFile("client-ca", o.ClientCAFile)
		if err != nil {
			return nil, fmt.Errorf("reading --client-ca-file: %w", err)
		}
		a.CAs = append(a.CAs, ca)
		chain = append(chain, newRemembering(x509.NewDynamic(ca.VerifyOptions, x509.CommonNameUserConversion), ca.VerifyOptions, certificateOwner))
	}
	if o.DevTokens {
		chain = append(chain, bearertoken.New(tokenfile.New(DevTokens())))
	}

	a.Authenticator = union.NewFailOnError(
		group.NewAuthenticatedGroupAdder(union.New(chain...)),
		anonymous.NewAuthenticator(probes()),
	)
	return a, nil
}

func requestHeaderConfig(ca dynamiccertificates.CAContentProvider, names []string) *authenticatorfactory.RequestHeaderConfig {
	return &authenticatorfactory.RequestHeaderConfig{
		UsernameHeaders:     headerrequest.StaticStringSlice{HeaderUser},
		UIDHeaders:          headerrequest.StaticStringSlice{HeaderUID},
		GroupHeaders:        headerrequest.StaticStringSlice{HeaderGroup},
		ExtraHeaderPrefixes: headerrequest.StaticStringSlice{HeaderExtraPrefix},
		CAContentProvider:   ca,
		AllowedClientNames:  headerrequest.StaticStringSlice(names),
	}
}

// ProbePaths are the paths that everybody may read, without a name.
func ProbePaths() []string { return []string{"/healthz", "/livez", "/readyz"} }

func probes() []apiserver.AnonymousAuthCondition {
	paths := ProbePaths()
	conditions := make([]apiserver.AnonymousAuthCondition, 0, len(paths))
	for _, path := range paths {
		conditions = append(conditions, apiserver.AnonymousAuthCondition{Path: path})
	}
	return conditions
}
