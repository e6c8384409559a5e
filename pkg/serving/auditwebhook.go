package serving

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/server/options"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	auditbuffered "k8s.io/apiserver/plugin/pkg/audit/buffered"
	audittruncate "k8s.io/apiserver/plugin/pkg/audit/truncate"
	auditwebhook "k8s.io/apiserver/plugin/pkg/audit/webhook"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/webhooktransport"
)

// newAuditWebhook returns upstream's webhook backend with our transport. In batch mode, it buffers at most maxBytes.
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
	hook.ShouldRetry = func(err error) bool { return err != nil } // any error may be temporary
	// Events are sent after the requests have ended, so that their contexts cannot be used.
	running, abandon := context.WithCancel(context.Background()) //nolint:forbidigo // upstream's interface has none
	direct := &auditWebhook{abandon: abandon, lossy: o.BatchOptions.Mode == options.ModeBlocking, send: func(events *auditinternal.EventList) error {
		return hook.WithExponentialBackoff(running, func() rest.Result { return hook.RestClient.Post().Body(events).Do(running) }).Error()
	}}
	var backend audit.Backend = direct
	if o.BatchOptions.Mode == options.ModeBatch {
		batches := &auditBatches{abandon: abandon, maxEvents: o.BatchOptions.BatchConfig.BufferSize, maxBytes: maxBytes}
		batches.Backend = auditbuffered.NewBackend(auditSent{direct, batches}, o.BatchOptions.BatchConfig)
		backend = batches
	}
	if o.TruncateOptions.Enabled {
		backend = audittruncate.NewBackend(backend, o.TruncateOptions.TruncateConfig, version)
	}
	return backend, nil
}

type auditWebhook struct {
	send    func(*auditinternal.EventList) error
	abandon context.CancelFunc
	// lossy is set if requests are not rejected when their events are lost.
	lossy bool
}

func (w *auditWebhook) ProcessEvents(events ...*auditinternal.Event) bool {
	list := auditinternal.EventList{Items: make([]auditinternal.Event, 0, len(events))}
	for _, event := range events {
		list.Items = append(list.Items, *event)
	}
	if err := w.send(&list); err != nil {
		audit.HandlePluginError(auditwebhook.PluginName, err, events...)
		return w.lossy
	}
	return true
}

func (*auditWebhook) Run(<-chan struct{}) error { return nil }

func (w *auditWebhook) Shutdown() { w.abandon() }

// String returns the name that upstream uses.
func (w *auditWebhook) String() string {
	if w.lossy {
		return fmt.Sprintf("ignoreErrors<%s>", auditwebhook.PluginName)
	}
	return auditwebhook.PluginName
}

const flagAuditBufferBytes = "audit-webhook-batch-buffer-bytes"

// auditStop limits how long a shutdown waits until the webhook has received the last events.
const auditStop = 10 * time.Second

// auditBatches adds limits to upstream's buffer, which ignores the size of events, takes batches off at once and
// holds each in a goroutine while the webhook hangs, and waits for all of them during shutdown.
type auditBatches struct {
	audit.Backend

	abandon   context.CancelFunc
	maxEvents int
	maxBytes  int64

	mu sync.Mutex
	// events and bytes are the number and the size of events in the buffer, including those that are being sent.
	events int
	bytes  int64
}

func (b *auditBatches) ProcessEvents(events ...*auditinternal.Event) bool {
	for _, event := range events {
		if err := b.add(event); err != nil {
			audit.HandlePluginError(auditbuffered.PluginName, err, event)
			continue
		}
		b.Backend.ProcessEvents(event)
	}
	return true
}

func (b *auditBatches) Shutdown() {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b.Backend.Shutdown()
	}()
	select {
	case <-ended:
	case <-time.After(auditStop):
		b.mu.Lock()
		defer b.mu.Unlock()
		klog.ErrorS(nil, "Timed out sending the last audit events, which are lost", "events", b.events, "waited", auditStop)
	}
	b.abandon()
}

type auditSent struct {
	audit.Backend
	buffer *auditBatches
}

func (s auditSent) ProcessEvents(events ...*auditinternal.Event) bool {
	defer s.buffer.remove(events)
	return s.Backend.ProcessEvents(events...)
}

func (b *auditBatches) add(event *auditinternal.Event) error {
	size := auditSize(event)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.events >= b.maxEvents {
		return fmt.Errorf("%d events are waiting for the webhook, which is the limit of --audit-webhook-batch-buffer-size", b.events)
	}
	if b.bytes+size > b.maxBytes {
		return fmt.Errorf("events of %d bytes are waiting for the webhook, and %[3]d more would exceed --%[2]s", b.bytes, flagAuditBufferBytes, size)
	}
	b.events++
	b.bytes += size
	return nil
}

func (b *auditBatches) remove(events []*auditinternal.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, event := range events {
		b.events--
		b.bytes -= auditSize(event)
	}
}

// auditSize returns the approximate memory size of an event, including everything that clients control.
func auditSize(event *auditinternal.Event) int64 {
	const others = 2 << 10
	size := others + 2*len(event.RequestURI) + len(event.UserAgent) + len(event.Verb) + len(event.AuditID) // names in the URI are also in the reference
	if event.RequestObject != nil {
		size += len(event.RequestObject.Raw)
	}
	if event.ResponseObject != nil {
		size += len(event.ResponseObject.Raw)
	}
	if event.ResponseStatus != nil {
		size += len(event.ResponseStatus.Message)
	}
	for key, value := range event.Annotations {
		size += len(key) + len(value)
	}
	size += auditUserSize(event.User.Groups, event.User.Extra)
	if event.ImpersonatedUser != nil {
		size += auditUserSize(event.ImpersonatedUser.Groups, event.ImpersonatedUser.Extra)
	}
	return int64(size)
}

func auditUserSize[V ~[]string](groups []string, extra map[string]V) (size int) {
	for _, group := range groups {
		size += len(group)
	}
	for key, values := range extra {
		size += len(key)
		for _, value := range values {
			size += len(value)
		}
	}
	return size
}
