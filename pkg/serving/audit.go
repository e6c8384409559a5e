package serving

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/apiserver/pkg/authentication/user"
	apifilters "k8s.io/apiserver/pkg/endpoints/filters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/options"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	auditbuffered "k8s.io/apiserver/plugin/pkg/audit/buffered"
	audittruncate "k8s.io/apiserver/plugin/pkg/audit/truncate"
	auditwebhook "k8s.io/apiserver/plugin/pkg/audit/webhook"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/webhooktransport"
)

const (
	// auditVirtualWorkspaceKey is the URL path of the virtual workspace, with names of logical clusters.
	auditVirtualWorkspaceKey = "shardplane.io/virtual-workspace"
	auditClusterKey          = logicalcluster.AnnotationKey
	auditShardKey            = request.ShardAnnotation
	auditPathKey             = core.LogicalClusterPathAnnotationKey
	// auditURIKey is the URI that the client sent, with which backends replace the URI of the event.
	auditURIKey = "shardplane.io/request-uri"
)

// AuditOptions are the audit options of kube-apiserver, and a limit for the webhook.
type AuditOptions struct {
	options.AuditOptions

	// WebhookBufferBytes limits the size of the events that are buffered or being sent in batch mode.
	//
	//reference:limit server --audit-webhook-batch-buffer-size | audit events: number in the buffer in batch mode | they are dropped and counted
	//reference:limit server --audit-webhook-batch-buffer-bytes | audit events: size of the buffer in batch mode | they are dropped and counted
	WebhookBufferBytes int64
}

// NewAuditOptions returns the defaults of kube-apiserver: no auditing.
func NewAuditOptions() AuditOptions {
	return AuditOptions{AuditOptions: *options.NewAuditOptions(), WebhookBufferBytes: 128 << 20}
}

// AddFlags adds the flags of o to fs.
func (o *AuditOptions) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.PolicyFile, "audit-policy-file", o.PolicyFile, "audit policy file (audit.k8s.io/v1)")
	log, webhook := &o.LogOptions, &o.WebhookOptions
	fs.StringVar(&log.Path, "audit-log-path", log.Path, "log file for audit events, in JSON; '-' is the standard output")
	fs.IntVar(&log.MaxAge, "audit-log-maxage", log.MaxAge, "number of days to keep rotated log files; 0 keeps them")
	fs.IntVar(&log.MaxBackups, "audit-log-maxbackup", log.MaxBackups, "number of rotated log files to keep; 0 keeps all")
	fs.IntVar(&log.MaxSize, "audit-log-maxsize", log.MaxSize, "size in megabytes at which the log file is rotated")
	fs.StringVar(&webhook.ConfigFile, "audit-webhook-config-file", webhook.ConfigFile, "kubeconfig file of the webhook that receives audit events")
	fs.StringVar(&webhook.BatchOptions.Mode, "audit-webhook-mode", webhook.BatchOptions.Mode, "time at which the webhook receives events: batch (later, several together), blocking (before the response), or blocking-strict (before the response, and before the request is processed)")
	fs.DurationVar(&webhook.InitialBackoff, "audit-webhook-initial-backoff", webhook.InitialBackoff, "time before the first retry of a failed request to the webhook")
	fs.BoolVar(&webhook.TruncateOptions.Enabled, "audit-webhook-truncate-enabled", webhook.TruncateOptions.Enabled, "omit the content of events above 100 KiB")
	batch := &webhook.BatchOptions.BatchConfig
	fs.IntVar(&batch.BufferSize, "audit-webhook-batch-buffer-size", batch.BufferSize, "maximum number of events that are waiting for the webhook or being sent; others are dropped and counted. Only in batch mode")
	fs.IntVar(&batch.MaxBatchSize, "audit-webhook-batch-max-size", batch.MaxBatchSize, "maximum number of events in one request to the webhook; only in batch mode")
	fs.DurationVar(&batch.MaxBatchWait, "audit-webhook-batch-max-wait", batch.MaxBatchWait, "maximum time that an event waits for others; only in batch mode")
	fs.Int64Var(&o.WebhookBufferBytes, flagAuditBufferBytes, o.WebhookBufferBytes,
		"maximum size in bytes of events that are waiting for the webhook or being sent; others are dropped and counted. Only in batch mode")
}

// Validate returns all errors in o.
func (o *AuditOptions) Validate() []error {
	errs := o.AuditOptions.Validate()
	if o.WebhookBufferBytes <= 0 {
		errs = append(errs, fmt.Errorf("--%s is %d, must be at least 1", flagAuditBufferBytes, o.WebhookBufferBytes))
	}
	if o.PolicyFile == "" && (o.LogOptions.Path != "" || o.WebhookOptions.ConfigFile != "") {
		errs = append(errs, errors.New("--audit-policy-file is required with --audit-log-path and --audit-webhook-config-file, because no event is recorded without a policy"))
	}
	if o.PolicyFile != "" && o.LogOptions.Path == "" && o.WebhookOptions.ConfigFile == "" {
		errs = append(errs, errors.New("--audit-policy-file requires --audit-log-path or --audit-webhook-config-file"))
	}
	return errs
}

// ApplyTo opens the backends of o. The server runs them.
func (o *AuditOptions) ApplyTo(ctx context.Context, c *genericapiserver.Config) error {
	if o.PolicyFile != "" {
		// The policy is loaded twice to return a better error.
		if _, err := policy.LoadPolicyFromFile(o.PolicyFile); err != nil {
			return fmt.Errorf("--audit-policy-file: %w (a policy has apiVersion audit.k8s.io/v1, kind Policy, and rules)", err)
		}
	}
	others := o.AuditOptions
	others.WebhookOptions.ConfigFile = ""
	if err := others.ApplyTo(c); err != nil {
		return fmt.Errorf("audit (--audit-log-path): %w", err)
	}
	if o.PolicyFile != "" && o.WebhookOptions.ConfigFile != "" {
		hook, err := newAuditWebhook(ctx, o.WebhookOptions, o.WebhookBufferBytes)
		if err != nil {
			return fmt.Errorf("--audit-webhook-config-file: %w", err)
		}
		if c.AuditBackend != nil {
			hook = audit.Union(c.AuditBackend, hook)
		}
		c.AuditBackend = hook
	}
	if c.AuditBackend != nil {
		c.AuditBackend = uriBackend{c.AuditBackend}
	}
	return nil
}

// withAuditURI stores the URI of the request. It must come before filters that change the URI.
func withAuditURI(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		audit.AddAuditAnnotation(r.Context(), auditURIKey, r.URL.RequestURI())
		next.ServeHTTP(w, r)
	})
}

// AuditScope returns the filter that adds the logical cluster, its canonical path if pathOf returns it, and the
// shard of requests to a cache server to audit events. Users do not know the names of logical clusters, and the
// front-proxy has replaced the path that the client sent.
func AuditScope(c *genericapiserver.Config, pathOf func(logicalcluster.Name) (string, bool)) Filter {
	return Filter{"audit scope", "adds shard, logical cluster and path to audit events", when(c.AuditBackend != nil, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ctx := r.Context()
			if cluster, ok := request.ClusterFrom(ctx); ok {
				audit.AddAuditAnnotation(ctx, auditClusterKey, cluster.String())
				if pathOf != nil && !cluster.Wildcard {
					if path, known := pathOf(cluster.Name); known {
						audit.AddAuditAnnotation(ctx, auditPathKey, path)
					}
				}
			}
			if scope := request.ScopeFrom(ctx); scope.VirtualWorkspace != nil {
				audit.AddAuditAnnotation(ctx, auditVirtualWorkspaceKey, scope.Mount.VirtualWorkspacePath(scope.Cluster.Name, scope.VirtualWorkspace.Name)+request.ClusterPath(scope.VirtualWorkspace.In.String()))
			}
			if shard, ok := request.ShardFrom(ctx); ok {
				audit.AddAuditAnnotation(ctx, auditShardKey, shard.String())
			}
			next.ServeHTTP(w, r)
		})
	})}
}

type uriBackend struct{ audit.Backend }

func (b uriBackend) ProcessEvents(events ...*auditinternal.Event) bool {
	events = slices.Clone(events)
	for i, event := range events {
		if uri, ok := event.Annotations[auditURIKey]; ok {
			changed := *event
			changed.RequestURI, changed.Annotations = uri, maps.Clone(event.Annotations)
			delete(changed.Annotations, auditURIKey)
			events[i] = &changed
		}
	}
	return b.Backend.ProcessEvents(events...)
}

// OwnResponses audits the requests to which a forwarding server itself responds, e.g. rejected ones. Other servers
// audit those that it forwards. A nil OwnResponses records nothing.
type OwnResponses struct {
	backend audit.Backend
	policy  audit.PolicyRuleEvaluator
}

// OwnResponse is a request and its response.
type OwnResponse struct {
	// Request is the original request, and Info its request info.
	Request *http.Request
	Info    *apirequest.RequestInfo
	// User is nil if the request was not authenticated.
	User    user.Info
	AuditID string
	// Cluster and Path are the logical cluster, as far as they are known.
	Cluster  logicalcluster.Name
	Path     logicalcluster.Path
	Received time.Time
	Status   metav1.Status
}

// NewOwnResponses opens the backends of o. It returns nil if there are none.
func NewOwnResponses(ctx context.Context, o *AuditOptions) (*OwnResponses, error) {
	c := &genericapiserver.Config{}
	if err := o.ApplyTo(ctx, c); err != nil {
		return nil, err
	}
	if c.AuditBackend == nil {
		return nil, nil //nolint:nilnil // as documented
	}
	return &OwnResponses{backend: c.AuditBackend, policy: c.AuditPolicyRuleEvaluator}, nil
}

// Run runs the backends until ctx is done, and returns when all recorded events have been written.
func (o *OwnResponses) Run(ctx context.Context) error {
	if err := o.backend.Run(ctx.Done()); err != nil {
		return err
	}
	<-ctx.Done()
	o.backend.Shutdown()
	return nil
}

// Record writes an event of the stage ResponseComplete, without content, if the policy requires one.
func (o *OwnResponses) Record(a OwnResponse) {
	if o == nil {
		return
	}
	ctx := audit.WithAuditContext(apirequest.WithRequestInfo(a.Request.Context(), a.Info))
	if a.User != nil {
		ctx = apirequest.WithUser(ctx, a.User)
	}
	attributes, err := apifilters.GetAuthorizerAttributes(ctx)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Failed to audit request", "uri", a.Request.URL.RequestURI())
		return
	}
	rule := o.policy.EvaluatePolicyRule(attributes)
	audit.ObservePolicyLevel(ctx, rule.Level)
	ac := audit.AuditContextFrom(ctx)
	if err := ac.Init(rule, o.backend); err != nil || rule.Level == auditinternal.LevelNone {
		return
	}
	audit.WithAuditID(ctx, types.UID(a.AuditID))
	audit.LogRequestMetadata(ctx, a.Request, a.Received, attributes)
	if a.Cluster != "" {
		audit.AddAuditAnnotation(ctx, auditClusterKey, a.Cluster.String())
	}
	if !a.Path.Empty() {
		audit.AddAuditAnnotation(ctx, auditPathKey, a.Path.String())
	}
	if a.Status.Code == http.StatusForbidden {
		audit.AddAuditAnnotations(ctx, "authorization.k8s.io/decision", "forbid", "authorization.k8s.io/reason", a.Status.Message)
	}
	ac.SetEventResponseStatus(&a.Status)
	ac.ProcessEventStage(ctx, auditinternal.StageResponseComplete)
}

// newAuditWebhook returns upstream's webhook backend with our transport. In batch mode, it buffers at most maxBytes.
func newAuditWebhook(ctx context.Context, o options.AuditWebhookOptions, maxBytes int64) (audit.Backend, error) {
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
	// Events are sent after the requests have ended, so that their contexts cannot be used. Shutdown ends it.
	running, abandon := context.WithCancel(context.WithoutCancel(ctx))
	direct := &auditWebhook{abandon: abandon, lossy: o.BatchOptions.Mode == options.ModeBlocking, sent: func([]*auditinternal.Event) {}, send: func(events *auditinternal.EventList) error {
		return hook.WithExponentialBackoff(running, func() rest.Result { return hook.RestClient.Post().Body(events).Do(running) }).Error()
	}}
	var backend audit.Backend = direct
	if o.BatchOptions.Mode == options.ModeBatch {
		batches := &auditBatches{abandon: abandon, maxEvents: o.BatchOptions.BatchConfig.BufferSize, maxBytes: maxBytes}
		direct.sent = batches.remove
		batches.Backend, batches.log = auditbuffered.NewBackend(direct, o.BatchOptions.BatchConfig), klog.FromContext(ctx)
		backend = batches
	}
	if o.TruncateOptions.Enabled {
		backend = audittruncate.NewBackend(backend, o.TruncateOptions.TruncateConfig, version)
	}
	return backend, nil
}

type auditWebhook struct {
	send func(*auditinternal.EventList) error
	// sent is called after events have been sent or are lost.
	sent    func([]*auditinternal.Event)
	abandon context.CancelFunc
	// lossy is set if requests are not rejected when their events are lost.
	lossy bool
}

func (w *auditWebhook) ProcessEvents(events ...*auditinternal.Event) bool {
	defer w.sent(events)
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

// auditBatches limits the number and size of buffered events. Upstream's buffer ignores the size of events. It
// removes batches immediately, keeps each in a goroutine while the webhook does not respond, and waits for all
// of them during shutdown.
type auditBatches struct {
	audit.Backend

	log       klog.Logger
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
		b.log.Error(nil, "Timed out sending the last audit events, which are lost", "events", b.events, "waited", auditStop)
	}
	b.abandon()
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
