package serving

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/server/options"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	auditbuffered "k8s.io/apiserver/plugin/pkg/audit/buffered"
	audittruncate "k8s.io/apiserver/plugin/pkg/audit/truncate"
	auditwebhook "k8s.io/apiserver/plugin/pkg/audit/webhook"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/webhooktransport"
)

// newAuditWebhook opens the webhook of o. It is upstream's backend, over a
// transport of ours, for which upstream's options have no place.
func newAuditWebhook(o options.AuditWebhookOptions) (audit.Backend, error) {
	version, err := schema.ParseGroupVersion(o.GroupVersionString)
	if err != nil {
		return nil, err
	}
	config, err := webhookutil.LoadKubeconfig(o.ConfigFile, nil)
	if err != nil {
		return nil, err
	}
	webhooktransport.Operator(config)
	hook, err := webhookutil.NewGenericWebhook(audit.Scheme, audit.Codecs, config, []schema.GroupVersion{version},
		webhookutil.DefaultRetryBackoffWithInitialDelay(o.InitialBackoff))
	if err != nil {
		return nil, err
	}
	hook.ShouldRetry = func(err error) bool { return err != nil } // whatever it is, the service may come back
	var backend audit.Backend = &auditWebhook{hook}
	switch o.BatchOptions.Mode {
	case options.ModeBlockingStrict:
	case options.ModeBlocking:
		backend = auditBestEffort{backend}
	default:
		backend = auditbuffered.NewBackend(backend, o.BatchOptions.BatchConfig)
	}
	if o.TruncateOptions.Enabled {
		backend = audittruncate.NewBackend(backend, o.TruncateOptions.TruncateConfig, version)
	}
	return backend, nil
}

// auditWebhook sends events to the webhook.
type auditWebhook struct{ hook *webhookutil.GenericWebhook }

// ProcessEvents implements audit.Sink.
func (w *auditWebhook) ProcessEvents(events ...*auditinternal.Event) bool {
	list := auditinternal.EventList{Items: make([]auditinternal.Event, 0, len(events))}
	for _, event := range events {
		list.Items = append(list.Items, *event)
	}
	// The requests that the events are about have ended.
	ctx := context.Background() //nolint:forbidigo // upstream's interface has none; the calls have a timeout
	result := w.hook.WithExponentialBackoff(ctx, func() rest.Result { return w.hook.RestClient.Post().Body(&list).Do(ctx) })
	if err := result.Error(); err != nil {
		audit.HandlePluginError(w.String(), err, events...)
		return false
	}
	return true
}

// Run implements audit.Backend.
func (*auditWebhook) Run(<-chan struct{}) error { return nil }

// Shutdown implements audit.Backend.
func (*auditWebhook) Shutdown() {}

// String returns the name of the backend in metrics.
func (*auditWebhook) String() string { return auditwebhook.PluginName }

// auditBestEffort lets requests go on whose events were lost.
type auditBestEffort struct{ audit.Backend }

// ProcessEvents implements audit.Sink.
func (b auditBestEffort) ProcessEvents(events ...*auditinternal.Event) bool {
	b.Backend.ProcessEvents(events...)
	return true
}

// String returns upstream's name for it.
func (b auditBestEffort) String() string { return fmt.Sprintf("ignoreErrors<%s>", b.Backend) }
