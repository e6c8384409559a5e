package serving

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/server/options"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	audittruncate "k8s.io/apiserver/plugin/pkg/audit/truncate"
	auditwebhook "k8s.io/apiserver/plugin/pkg/audit/webhook"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/webhooktransport"
)

// newAuditWebhook opens the webhook of o. It is upstream's backend, over a
// transport of ours, for which upstream's options have no place. In the mode batch
// it holds no more events than its buffer has places, and maxBytes of them.
func newAuditWebhook(o options.AuditWebhookOptions, maxBytes int64) (audit.Backend, error) {
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
	// Requests have ended when their events are sent, so these contexts are not theirs.
	running, abandon := context.WithCancel(context.Background()) //nolint:forbidigo // upstream's interface has none
	var backend audit.Backend = &auditWebhook{abandon: abandon, send: func(events *auditinternal.EventList) error {
		return hook.WithExponentialBackoff(running, func() rest.Result { return hook.RestClient.Post().Body(events).Do(running) }).Error()
	}}
	switch o.BatchOptions.Mode {
	case options.ModeBlockingStrict:
	case options.ModeBlocking:
		backend = auditBestEffort{backend}
	default:
		backend = newAuditBatches(backend, o.BatchOptions.BatchConfig, maxBytes, abandon)
	}
	if o.TruncateOptions.Enabled {
		backend = audittruncate.NewBackend(backend, o.TruncateOptions.TruncateConfig, version)
	}
	return backend, nil
}

// auditWebhook sends events to the webhook.
type auditWebhook struct {
	send func(*auditinternal.EventList) error
	// abandon ends all calls.
	abandon context.CancelFunc
}

// ProcessEvents implements audit.Sink.
func (w *auditWebhook) ProcessEvents(events ...*auditinternal.Event) bool {
	list := auditinternal.EventList{Items: make([]auditinternal.Event, 0, len(events))}
	for _, event := range events {
		list.Items = append(list.Items, *event)
	}
	if err := w.send(&list); err != nil {
		audit.HandlePluginError(w.String(), err, events...)
		return false
	}
	return true
}

// Run implements audit.Backend.
func (*auditWebhook) Run(<-chan struct{}) error { return nil }

// Shutdown implements audit.Backend.
func (w *auditWebhook) Shutdown() { w.abandon() }

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
