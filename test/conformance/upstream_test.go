package conformance

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	extensionsoptions "k8s.io/apiextensions-apiserver/pkg/cmd/server/options"
	generatedopenapi "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/test/harness"
)

// startUpstream starts the API server of custom resources that Kubernetes
// publishes, on an etcd of its own: what it does is the measure.
func startUpstream(t testing.TB) *rest.Config {
	t.Helper()
	o := extensionsoptions.NewCustomResourceDefinitionsServerOptions(io.Discard, io.Discard)
	o.RecommendedOptions.Etcd.StorageConfig.Transport.ServerList = []string{harness.Etcd(t, transport.TLSInfo{})}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	o.RecommendedOptions.SecureServing.Listener = listener
	o.RecommendedOptions.SecureServing.ServerCert.CertDirectory = t.TempDir()
	o.RecommendedOptions.Authentication = nil
	o.RecommendedOptions.Authorization = nil
	o.RecommendedOptions.CoreAPI = nil
	o.RecommendedOptions.Admission = nil
	o.RecommendedOptions.Features.EnablePriorityAndFairness = false
	require.NoError(t, o.Complete())
	require.NoError(t, o.RecommendedOptions.SecureServing.MaybeDefaultWithSelfSignedCerts("localhost", nil, []net.IP{net.IPv4(127, 0, 0, 1)}))
	generic := genericapiserver.NewRecommendedConfig(apiextensionsserver.Codecs)
	require.NoError(t, o.ServerRunOptions.ApplyTo(&generic.Config))
	require.NoError(t, o.RecommendedOptions.ApplyTo(generic))
	require.NoError(t, o.APIEnablement.ApplyTo(&generic.Config, apiextensionsserver.DefaultAPIResourceConfigSource(), apiextensionsserver.Scheme))
	namer := openapinamer.NewDefinitionNamer(apiextensionsserver.Scheme)
	generic.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(generatedopenapi.GetOpenAPIDefinitions, namer)
	config := &apiextensionsserver.Config{
		GenericConfig: generic,
		ExtraConfig: apiextensionsserver.ExtraConfig{
			CRDRESTOptionsGetter: extensionsoptions.NewCRDRESTOptionsGetter(*o.RecommendedOptions.Etcd, generic.ResourceTransformers, generic.StorageObjectCountTracker),
			ServiceResolver:      webhook.NewDefaultServiceResolver(),
			AuthResolverWrapper:  webhook.NewDefaultAuthenticationInfoResolverWrapper(nil, nil, generic.LoopbackClientConfig, nil),
		},
	}
	server, err := config.Complete().New(genericapiserver.NewEmptyDelegate())
	require.NoError(t, err)

	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- server.GenericAPIServer.PrepareRun().RunWithContext(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return &rest.Config{
		Host:            "https://" + listener.Addr().String(),
		TLSClientConfig: rest.TLSClientConfig{Insecure: true},
		QPS:             -1,
	}
}

// etcdEnv names the directory in which this program, run anew, is an etcd.
const etcdEnv = "CONFORMANCE_ETCD"

// serveEtcd runs an etcd until its standard input ends.
func serveEtcd(dir string) error {
	server, err := harness.OpenEtcd(dir, transport.TLSInfo{})
	if err != nil {
		return err
	}
	defer server.Close()
	fmt.Println(server.Config().ListenClientUrls[0].String())
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}
