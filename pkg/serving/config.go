// Package serving contains the common parts of the servers that store objects: options of the secure listener,
// the configuration of the generic API server, and filters of the handler chains.
//
//	Chain = EarlyFilters + scope filters + AuthenticationFilters + WithAccessHeader + Decision + limits and rules
//
// Each server assembles its chain from these parts; docs/chains.md lists them. Scopes moves the scope from the URL
// into the context, so that all other filters see a plain Kubernetes path.
//
// Subpackages: ledger limits concurrent requests and other resources of logical clusters and users; connections,
// bodies and responses account for them. fairness schedules requests between logical clusters, and watchdog handles
// requests that compute after their end. features contains the feature gates, metriclabels limits the cardinality of
// metrics, and inprocess connects a server to itself.
package serving

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/version"
	apiopenapi "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/features"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/server/routes"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/rest"
	basecompatibility "k8s.io/component-base/compatibility"
	baseversion "k8s.io/component-base/version"
	openapicommon "k8s.io/kube-openapi/pkg/common"

	"github.com/shardplane/shardplane/pkg/authn"
	"github.com/shardplane/shardplane/pkg/customresource/documents/openapigate"
	"github.com/shardplane/shardplane/pkg/etcd"
	"github.com/shardplane/shardplane/pkg/serving/connections"
	"github.com/shardplane/shardplane/pkg/serving/inprocess"
	"github.com/shardplane/shardplane/pkg/serving/metriclabels"
)

// shutdownTimeout limits how long a shutdown waits for requests in flight. LongRunningStop ends watches at once.
const shutdownTimeout = 5 * time.Second

// API describes the API of a server.
type API struct {
	Title       string
	Scheme      *runtime.Scheme
	Codecs      serializer.CodecFactory
	Definitions openapicommon.GetOpenAPIDefinitions
}

// NewConfig returns the configuration of a generic API server, with a loopback client in
// system:masters. The caller adds authentication, authorizer, handler chain and storage, and must
// close the listener if it does not run the server.
func NewConfig(ctx context.Context, o *APIOptions, l *Listener, api API) (*genericapiserver.Config, error) {
	kubernetes, err := o.FeatureGates.Others()
	if err == nil {
		err = setFeatureGates(kubernetes)
	}
	if err != nil {
		return nil, err
	}
	if err := metriclabels.Bound(); err != nil {
		return nil, err
	}
	c := genericapiserver.NewConfig(api.Codecs)
	secure := *l.SecureServingInfo
	c.SecureServing = &secure
	host, port, err := c.SecureServing.HostPort()
	if err != nil {
		return nil, fmt.Errorf("loopback client: %w", err)
	}
	c.LoopbackClientConfig = &rest.Config{
		Host:               "https://" + net.JoinHostPort(host, strconv.Itoa(port)),
		BearerToken:        uuid.NewString(),
		Transport:          inprocess.NewTransport(),
		QPS:                -1,
		DisableCompression: true, // it would be done and undone in the same process
	}
	if err := o.Audit.ApplyTo(ctx, c); err != nil {
		return nil, err
	}
	c.EffectiveVersion = effectiveVersion{compatibility.DefaultBuildEffectiveVersion()}
	c.MaxRequestsInFlight = o.MaxRequestsInFlight
	c.MaxMutatingRequestsInFlight = o.MaxMutatingRequestsInFlight
	c.EnableProfiling = true
	c.EnableIndex = false
	namer := apiopenapi.NewDefinitionNamer(api.Scheme)
	c.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(api.Definitions, namer)
	c.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(api.Definitions, namer)
	c.OpenAPIConfig.Info.Title, c.OpenAPIV3Config.Info.Title = api.Title, api.Title
	c.OpenAPIConfig.PostProcessSpec, c.OpenAPIV3Config.PostProcessSpec = openapigate.V2, openapigate.V3
	c.SkipOpenAPIInstallation = true
	return c, nil
}

// Authenticate configures the authentication of the server. The caller must run a.
func Authenticate(c *genericapiserver.Config, a *authn.Authentication) {
	c.SecureServing.ClientCA = dynamiccertificates.NewUnionCAContentProvider(a.CAs...)
	c.Authentication.Authenticator = a.Authenticator
	c.Authentication.RequestHeaderConfig = a.RequestHeader
	c.Authentication.APIAudiences = a.Audiences
}

// NewAPIServer returns the server of c with the filters of build. It also serves OpenAPI, metrics, and snapshots of data.
func NewAPIServer(
	name string, c *genericapiserver.Config, build func(c *genericapiserver.Config) Chain, data *etcd.Handle, metrics prometheus.Gatherer, codecs runtime.NegotiatedSerializer,
) (*genericapiserver.GenericAPIServer, error) {
	allowSnapshots(c)
	SetChain(c, build)
	s, err := c.Complete(nil).New(name, genericapiserver.NewEmptyDelegate())
	if err != nil {
		return nil, fmt.Errorf("assembling the API server: %w", err)
	}
	installSnapshots(s, data, codecs)
	installMetrics(s, metrics)
	installOpenAPI(s, c)
	return s, nil
}

// Run runs s until ctx is done, and returns when all requests have ended.
func Run(ctx context.Context, s *genericapiserver.GenericAPIServer) error {
	s.ShutdownTimeout = shutdownTimeout
	if l, ok := s.SecureServingInfo.Listener.(*connections.Listener); ok {
		defer l.CloseAll()
	}
	prepared := s.PrepareRun()
	if own, ok := s.LoopbackClientConfig.Transport.(*inprocess.Transport); ok {
		defer own.Serve(ctx, s.Handler)()
	}
	if err := prepared.RunWithContext(ctx); err != nil {
		return fmt.Errorf("serving on %s: %w", s.ExternalAddress, err)
	}
	return nil
}

// setFeatureGates sets the defaults, and then the gates of the user. Gates are global to the process.
func setFeatureGates(gates map[string]bool) error {
	wanted := map[string]bool{
		string(features.ShardedListAndWatch): true,
		string(features.WatchList):           true,
		// Every five minutes, it reads and decodes all objects from etcd. It only protects lists
		// from snapshots of the watch cache, but the hub has its own.
		string(features.DetectCacheInconsistency): false,
	}
	maps.Copy(wanted, gates)
	if err := utilfeature.DefaultMutableFeatureGate.SetFromMap(wanted); err != nil {
		return fmt.Errorf("--feature-gates: %w", err)
	}
	return nil
}

// effectiveVersion sets the Kubernetes version, which clients compare with theirs, without version stamps.
type effectiveVersion struct {
	basecompatibility.EffectiveVersion
}

func (v effectiveVersion) Info() *version.Info {
	info := v.EffectiveVersion.Info()
	if info == nil || info.Major == "" {
		return info
	}
	stamped := *info
	if baseversion.Get().Major == "" {
		stamped.GitVersion = "v" + baseversion.DefaultKubeBinaryVersion + ".0+shardplane"
	}
	return &stamped
}

// installOpenAPI serves the OpenAPI documents of the built-in resources of s, which was created with c. Upstream builds
// them at startup. Here, the first request does, because they need 8 MB and a sixth of the CPU time of a start.
func installOpenAPI(s *genericapiserver.GenericAPIServer, c *genericapiserver.Config) {
	documents := sync.OnceValue(func() http.Handler {
		served := mux.NewPathRecorderMux("openapi")
		openapi := routes.OpenAPI{Config: c.OpenAPIConfig, V3Config: c.OpenAPIV3Config}
		openapi.InstallV2(s.Handler.GoRestfulContainer, served)
		openapi.InstallV3(s.Handler.GoRestfulContainer, served)
		return served
	})
	serve := func(w http.ResponseWriter, r *http.Request) { documents().ServeHTTP(w, r) }
	for _, path := range []string{"/openapi/v2", "/openapi/v3"} {
		s.Handler.NonGoRestfulMux.HandleFunc(path, serve)
	}
	s.Handler.NonGoRestfulMux.HandlePrefix("/openapi/v3/", http.HandlerFunc(serve))
}
