package reference

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	basecompatibility "k8s.io/component-base/compatibility"

	"github.com/shardplane/shardplane/pkg/dev/pki"
	"github.com/shardplane/shardplane/pkg/registry"
	"github.com/shardplane/shardplane/pkg/registry/generated/openapi"
)

// Options specify where the server runs.
type Options struct {
	// Dir contains certificates, the kubeconfig and etcd's data.
	Dir string
	// Port is the port on 127.0.0.1; 0 selects a free port.
	Port int
	// Ready is called with the path of the kubeconfig when the server serves.
	Ready func(kubeconfig string)
}

// Run runs the server until the context ends.
func Run(ctx context.Context, o Options) error {
	// Shardplane enables it, too.
	if err := utilfeature.DefaultMutableFeatureGate.Set("ShardedListAndWatch=true"); err != nil {
		return fmt.Errorf("enabling sharded lists and watches: %w", err)
	}
	certs, err := ensureCertificates(o.Dir)
	if err != nil {
		return err
	}
	etcd, err := startEtcd(ctx, filepath.Join(o.Dir, "etcd"))
	if err != nil {
		return err
	}
	defer etcd.Close()

	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", o.Port))
	if err != nil {
		return fmt.Errorf("listening: %w", err)
	}
	config, err := newConfig(certs, listener)
	if err != nil {
		return err
	}
	server, err := config.Complete(nil).New("reference", genericapiserver.NewEmptyDelegate())
	if err != nil {
		return fmt.Errorf("creating the server: %w", err)
	}
	access := registry.Access{Authorizer: config.Authorization.Authorizer}
	if err := registry.Install(server, storage{endpoint: "http://" + etcd.Clients[0].Addr().String()}, access); err != nil {
		return err
	}
	server.AddPostStartHookOrDie("report-ready", func(genericapiserver.PostStartHookContext) error {
		kubeconfig := filepath.Join(o.Dir, "reference.kubeconfig")
		if err := writeKubeconfig(kubeconfig, "https://"+listener.Addr().String(), certs); err != nil {
			return err
		}
		if o.Ready != nil {
			o.Ready(kubeconfig)
		}
		return nil
	})
	return server.PrepareRun().RunWithContext(ctx)
}

// certificates are those of the server and its only user.
type certificates struct {
	ca            *pki.Pair
	serving, user *pki.Pair
	caFile        string
}

func ensureCertificates(dir string) (*certificates, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("creating the directory of the reference server: %w", err)
	}
	store := pki.NewStore(dir, time.Now)
	ca, err := store.Authority("ca")
	if err != nil {
		return nil, err
	}
	serving, err := store.Certificate("apiserver", ca, pki.Spec{CommonName: "localhost", IPs: []net.IP{net.IPv4(127, 0, 0, 1)}})
	if err != nil {
		return nil, err
	}
	user, err := store.Certificate("admin", ca, pki.Client("admin", "system:masters"))
	if err != nil {
		return nil, err
	}
	return &certificates{ca: ca, serving: serving, user: user, caFile: filepath.Join(dir, "ca.crt")}, nil
}

// startEtcd starts an etcd with upstream's defaults on a free port. Its peer port is not used,
// because it is the only member.
func startEtcd(ctx context.Context, dir string) (*embed.Etcd, error) {
	anyPort := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	config := embed.NewConfig()
	config.Dir = dir
	config.LogLevel = "error"
	config.ListenClientUrls = []url.URL{anyPort}
	config.ListenPeerUrls = []url.URL{anyPort}
	config.QuotaBackendBytes = 8 << 30
	etcd, err := embed.StartEtcd(config)
	if err != nil {
		return nil, fmt.Errorf("starting etcd: %w", err)
	}
	select {
	case <-etcd.Server.ReadyNotify():
		return etcd, nil
	case err = <-etcd.Err():
	case <-ctx.Done():
		err = ctx.Err()
	}
	etcd.Close()
	return nil, fmt.Errorf("waiting for etcd: %w", err)
}

// newConfig configures the generic server without resources.
func newConfig(certs *certificates, listener net.Listener) (*genericapiserver.Config, error) {
	config := genericapiserver.NewConfig(registry.Codecs)
	config.EffectiveVersion = basecompatibility.NewEffectiveVersionFromString("1.37", "", "")
	namer := openapinamer.NewDefinitionNamer(registry.Scheme)
	config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(openapi.GetOpenAPIDefinitions, namer)
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(openapi.GetOpenAPIDefinitions, namer)
	// More than the benchmark's clients, because queues are not measured.
	config.MaxRequestsInFlight, config.MaxMutatingRequestsInFlight = 3000, 1000

	secure := options.NewSecureServingOptions().WithLoopback()
	secure.Listener = listener
	secure.BindPort = listener.Addr().(*net.TCPAddr).Port
	secure.ServerCert.CertKey = options.CertKey{CertFile: certs.serving.CertFile, KeyFile: certs.serving.KeyFile}
	if err := secure.ApplyTo(&config.SecureServing, &config.LoopbackClientConfig); err != nil {
		return nil, fmt.Errorf("configuring TLS: %w", err)
	}
	clientCA, err := dynamiccertificates.NewDynamicCAContentFromFile("client-ca", certs.caFile)
	if err != nil {
		return nil, fmt.Errorf("reading the client CA: %w", err)
	}
	config.SecureServing.ClientCA = clientCA
	config.Authentication.Authenticator = x509.NewDynamic(clientCA.VerifyOptions, x509.CommonNameUserConversion)
	config.Authorization.Authorizer = authorizerfactory.NewPrivilegedGroups("system:masters")
	return config, nil
}

// storage stores resources as upstream does.
type storage struct{ endpoint string }

// GetRESTOptions implements generic.RESTOptionsGetter.
func (s storage) GetRESTOptions(resource schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	codec, err := registry.StorageCodec(resource)
	if err != nil {
		return generic.RESTOptions{}, err
	}
	config := storagebackend.NewDefaultConfig("/registry", codec)
	config.Transport.ServerList = []string{s.endpoint}
	return generic.RESTOptions{
		StorageConfig:           config.ForResource(resource),
		Decorator:               genericregistry.StorageWithCacher(),
		DeleteCollectionWorkers: 1,
		EnableGarbageCollection: true,
		ResourcePrefix:          resource.Group + "/" + resource.Resource,
	}, nil
}

func writeKubeconfig(path, server string, certs *certificates) error {
	config := clientcmdapi.NewConfig()
	config.Clusters["reference"] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: certs.ca.CertPEM}
	config.AuthInfos["admin"] = &clientcmdapi.AuthInfo{ClientCertificateData: certs.user.CertPEM, ClientKeyData: certs.user.KeyPEM}
	config.Contexts["reference"] = &clientcmdapi.Context{Cluster: "reference", AuthInfo: "admin"}
	config.CurrentContext = "reference"
	// Readers wait until the file exists, so it must not exist before it is complete.
	partial := path + ".partial"
	if err := errors.Join(clientcmd.WriteToFile(*config, partial), os.Rename(partial, path)); err != nil {
		return fmt.Errorf("writing the kubeconfig: %w", err)
	}
	return nil
}
