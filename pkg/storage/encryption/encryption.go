// Package encryption encrypts resources in etcd as specified by an EncryptionConfiguration file, like
// kube-apiserver:
//
//	Options ─► Open ─► Providers ─► Transformers() to storage.BackendConfig
//	                           └──► Run reloads the file; Close ends KMS connections
//
// The providers are upstream's. aesgcm and kms bind a value to its key in etcd, and thus to its logical
// cluster. If a value is copied to another logical cluster, it cannot be decrypted there.
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

// Options configure the encryption of resources.
type Options struct {
	// ConfigFile is the path of an EncryptionConfiguration. If empty, resources are not encrypted.
	ConfigFile string
}

// AddFlags adds the flags of o to fs.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.ConfigFile, "encryption-provider-config", o.ConfigFile, "file with the EncryptionConfiguration (apiserver.config.k8s.io/v1) for resources in etcd; changes are loaded within a minute")
}

// Providers are the open providers of a configuration. They must be closed.
type Providers struct {
	transformers value.ResourceTransformers
	checks       []healthz.HealthChecker
	run          func(ctx context.Context)
	closeKMS     context.CancelFunc
}

// Open reads the configuration and connects to its key management services. serverID distinguishes processes in
// metrics. Without a configuration, the Providers do not encrypt.
func (o *Options) Open(ctx context.Context, serverID string) (*Providers, error) {
	if o.ConfigFile == "" {
		idle := func(ctx context.Context) { <-ctx.Done() }
		return &Providers{transformers: encryptionconfig.StaticTransformers{}, run: idle, closeKMS: func() {}}, nil
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
		return nil, fmt.Errorf("--encryption-provider-config: expected 1 health check, got %d", len(loaded.HealthChecks))
	}
	dynamic := encryptionconfig.NewDynamicTransformers(loaded.Transformers, loaded.HealthChecks[0], closeKMS, loaded.KMSCloseGracePeriod)
	return &Providers{
		transformers: dynamic,
		checks:       []healthz.HealthChecker{dynamic},
		run: func(ctx context.Context) {
			controller.NewDynamicEncryptionConfiguration("encryption-provider-config-automatic-reload-controller",
				o.ConfigFile, dynamic, loaded.EncryptionFileContentHash, serverID).Run(ctx)
		},
		closeKMS: closeKMS,
	}, nil
}

// Transformers returns the transformers for the storage. Without a configuration, they reject encrypted values.
func (p *Providers) Transformers() value.ResourceTransformers { return explained{p.transformers} }

// explained adds a hint to decryption errors.
type explained struct{ value.ResourceTransformers }

func (e explained) TransformerForResource(resource schema.GroupResource) value.Transformer {
	return explainedTransformer{e.ResourceTransformers.TransformerForResource(resource)}
}

type explainedTransformer struct{ value.Transformer }

func (e explainedTransformer) TransformFromStorage(ctx context.Context, data []byte, key value.Context) (out []byte, stale bool, err error) {
	out, stale, err = e.Transformer.TransformFromStorage(ctx, data, key)
	if err != nil {
		err = fmt.Errorf("%w: --encryption-provider-config of this server lacks its key, or the KMS plugin is unavailable; all replicas of a shard need the same keys", err)
	}
	return out, stale, err
}

// HealthChecks check the key management services.
func (p *Providers) HealthChecks() []healthz.HealthChecker { return p.checks }

// Run reloads the file when it changes, until ctx is done.
func (p *Providers) Run(ctx context.Context) error {
	p.run(ctx)
	return nil
}

// Close closes the connections to key management services.
func (p *Providers) Close() { p.closeKMS() }
