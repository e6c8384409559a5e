// Package encryption encrypts resources before they reach etcd, by an
// EncryptionConfiguration file as kube-apiserver's:
//
//	Options ─► Open ─► Providers ─► Transformers() to storage.BackendConfig
//	                           └──► Run reloads the file; Close ends KMS connections
//
// The providers are upstream's. What aesgcm and kms seal is bound to its key in
// etcd, and with it to its logical cluster: a value copied to the key of another
// logical cluster cannot be read there.
package encryption

import (
	"context"
	"fmt"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig/controller"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig/metrics"
	"k8s.io/apiserver/pkg/storage/value"
)

// Options say how resources are encrypted.
type Options struct {
	// ConfigFile is an EncryptionConfiguration; nothing is encrypted without.
	ConfigFile string
}

// AddFlags adds the flags of o to fs.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.ConfigFile, "encryption-provider-config", o.ConfigFile, "EncryptionConfiguration file (apiserver.config.k8s.io/v1) that says which resources are encrypted in etcd, and with which keys; read again within a minute when it changes")
}

// Providers are the opened providers of a configuration. Close them in the end.
type Providers struct {
	transformers value.ResourceTransformers
	checks       []healthz.HealthChecker
	reload       func(ctx context.Context)
	closeKMS     context.CancelFunc
}

// Open reads the configuration and connects to its key management services.
// serverID tells processes apart in metrics. Without a configuration it returns
// Providers that encrypt nothing.
func (o *Options) Open(ctx context.Context, serverID string) (*Providers, error) {
	if o.ConfigFile == "" {
		return &Providers{transformers: encryptionconfig.StaticTransformers{}, closeKMS: func() {}}, nil
	}
	kms, closeKMS := context.WithCancel(context.WithoutCancel(ctx))
	loaded, err := encryptionconfig.LoadEncryptionConfig(kms, o.ConfigFile, true, serverID)
	if err != nil {
		closeKMS()
		return nil, fmt.Errorf("--encryption-provider-config %s: %w", o.ConfigFile, err)
	}
	metrics.RegisterMetrics()
	metrics.RecordEncryptionConfigLastConfigInfo(serverID, loaded.EncryptionFileContentHash)
	if len(loaded.HealthChecks) != 1 {
		closeKMS()
		return nil, fmt.Errorf("--encryption-provider-config: %d health checks where one is needed", len(loaded.HealthChecks))
	}
	dynamic := encryptionconfig.NewDynamicTransformers(loaded.Transformers, loaded.HealthChecks[0], closeKMS, loaded.KMSCloseGracePeriod)
	return &Providers{
		transformers: dynamic,
		checks:       []healthz.HealthChecker{dynamic},
		reload: func(ctx context.Context) {
			controller.NewDynamicEncryptionConfiguration("encryption-provider-config-automatic-reload-controller",
				o.ConfigFile, dynamic, loaded.EncryptionFileContentHash, serverID).Run(ctx)
		},
		closeKMS: closeKMS,
	}, nil
}

// Transformers returns what storage encrypts with. Without a configuration it
// encrypts nothing, and refuses to read what is encrypted.
func (p *Providers) Transformers() value.ResourceTransformers { return explained{p.transformers} }

// explained says what to do about values that cannot be read.
type explained struct{ value.ResourceTransformers }

// TransformerForResource implements value.ResourceTransformers.
func (e explained) TransformerForResource(resource schema.GroupResource) value.Transformer {
	return explainedTransformer{e.ResourceTransformers.TransformerForResource(resource)}
}

type explainedTransformer struct{ value.Transformer }

// TransformFromStorage implements value.Transformer.
func (e explainedTransformer) TransformFromStorage(ctx context.Context, data []byte, key value.Context) (out []byte, stale bool, err error) {
	out, stale, err = e.Transformer.TransformFromStorage(ctx, data, key)
	if err != nil {
		err = fmt.Errorf("%w: --encryption-provider-config of this server lacks its key, or the KMS plugin does not answer; give all replicas of a shard the same keys", err)
	}
	return out, stale, err
}

// HealthChecks report whether the key management services answer.
func (p *Providers) HealthChecks() []healthz.HealthChecker { return p.checks }

// Run takes up changes of the file until ctx is done.
func (p *Providers) Run(ctx context.Context) error {
	if p.reload == nil {
		<-ctx.Done()
		return nil
	}
	p.reload(ctx)
	return nil
}

// Close ends the connections to key management services.
func (p *Providers) Close() { p.closeKMS() }
