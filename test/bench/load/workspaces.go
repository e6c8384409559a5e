package load

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"github.com/shardplane/shardplane/test/bench/measure"
)

var workspaces = tenancyv1alpha1.SchemeGroupVersion.WithResource("workspaces")

// WorkspaceOptions say how Workspaces loads a target.
type WorkspaceOptions struct {
	// Creators create one workspace after the other.
	Creators int
	// Count is how many are created in all.
	Count int
	// Rate bounds the creations per second of all creators; 0 means none.
	Rate float64
	// Timeout bounds the whole.
	Timeout time.Duration
	// Keep leaves the workspaces there.
	Keep bool
	// Run tells the workspaces of this run from others.
	Run string
}

// Workspaces creates workspaces below the target's logical cluster and measures
// the creation, the time from the beginning of the creation until a watch says
// that the workspace is Ready, and the deletion until it is gone. It returns
// the logical clusters of the workspaces that became ready.
func Workspaces(ctx context.Context, target Target, o WorkspaceOptions) (results []measure.Result, clusters []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	creators, err := clients(o.Creators, target.dynamic)
	if err != nil {
		return nil, nil, err
	}
	observer, err := observeWorkspaces(ctx, creators[0], o.Run)
	if err != nil {
		return nil, nil, err
	}
	defer observer.stop()

	create := &phase{limit: int64(o.Count)}
	if o.Rate > 0 {
		create.interval = time.Duration(float64(time.Second) / o.Rate)
	}
	begin := time.Now()
	elapsed := run(ctx, create, creators, func(ctx context.Context, client dynamic.Interface, n int) error {
		name := fmt.Sprintf("bench-%s-%d", o.Run, n)
		observer.starting(name)
		return createWorkspace(ctx, client, name, o.Run)
	})
	waitErr := observer.waitReady(ctx, create.recorder.Count())
	created, err := create.result("create Workspace", target.Name, elapsed)
	if err != nil {
		return nil, nil, fmt.Errorf("creating workspaces at %s: %w", target.Name, err)
	}
	ready := observer.ready.Median("Workspace ready", target.Name)
	ready.Note = fmt.Sprintf("%.1f ready per second, %d creators", float64(ready.Count)/time.Since(begin).Seconds(), o.Creators)
	results = append(results, created, ready)
	clusters = observer.clusters()
	if waitErr != nil {
		return results, clusters, fmt.Errorf("%d of %d workspaces became ready: %w", ready.Count, created.Count, waitErr)
	}
	if o.Keep {
		return results, clusters, nil
	}
	gone, err := removeWorkspaces(ctx, target, o.Run, observer)
	return append(results, gone), nil, err
}

// removeWorkspaces deletes the workspaces of the run and waits until none is
// left.
func removeWorkspaces(ctx context.Context, target Target, run string, observer *observer) (measure.Result, error) {
	count := len(observer.clusters())
	begin := time.Now()
	if err := DeleteWorkspaces(ctx, target, run); err != nil {
		return measure.Result{}, err
	}
	if err := observer.waitGone(ctx); err != nil {
		return measure.Result{}, fmt.Errorf("workspaces are not gone: %w", err)
	}
	return measure.Result{
		Name: "Workspace gone", Target: target.Name, Unit: "/s", Count: count,
		Value: float64(count) / time.Since(begin).Seconds(), Note: "deletecollection until the last is gone",
	}, nil
}

// DeleteWorkspaces deletes the workspaces of a run.
func DeleteWorkspaces(ctx context.Context, target Target, run string) error {
	client, err := target.dynamic()
	if err != nil {
		return err
	}
	if err := client.Resource(workspaces).DeleteCollection(ctx, metav1.DeleteOptions{}, ofRun(run)); err != nil {
		return fmt.Errorf("deleting the workspaces of the run: %w", err)
	}
	return nil
}

func createWorkspace(ctx context.Context, client dynamic.Interface, name, run string) error {
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": workspaces.GroupVersion().String(),
		"kind":       "Workspace",
		"metadata":   map[string]any{"name": name, "labels": map[string]any{benchLabel: run}},
		"spec":       map[string]any{},
	}}
	_, err := client.Resource(workspaces).Create(ctx, object, metav1.CreateOptions{})
	return err
}

func ofRun(run string) metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: benchLabel + "=" + run}
}

// observer watches the workspaces of a run.
type observer struct {
	watch watch.Interface
	ready measure.Recorder
	// changed holds a token after an event.
	changed chan struct{}
	done    sync.WaitGroup

	mu      sync.Mutex
	started map[string]time.Time
	// existing are the logical clusters of the workspaces that exist, empty for
	// those that are not ready.
	existing map[string]string
	failed   error
}

// observeWorkspaces starts to watch.
func observeWorkspaces(ctx context.Context, client dynamic.Interface, run string) (*observer, error) {
	list, err := client.Resource(workspaces).List(ctx, ofRun(run))
	if err != nil {
		return nil, fmt.Errorf("listing workspaces: %w", err)
	}
	options := ofRun(run)
	options.ResourceVersion = list.GetResourceVersion()
	watching, err := client.Resource(workspaces).Watch(ctx, options)
	if err != nil {
		return nil, fmt.Errorf("watching workspaces: %w", err)
	}
	o := &observer{
		watch: watching, changed: make(chan struct{}, 1),
		started: map[string]time.Time{}, existing: map[string]string{},
	}
	o.done.Go(o.run)
	return o, nil
}

func (o *observer) stop() {
	o.watch.Stop()
	o.done.Wait()
}

func (o *observer) run() {
	for event := range o.watch.ResultChan() {
		o.take(event)
		o.signal()
	}
	o.mu.Lock()
	if o.failed == nil {
		o.failed = errors.New("the watch ended")
	}
	o.mu.Unlock()
	o.signal()
}

func (o *observer) signal() {
	select {
	case o.changed <- struct{}{}:
	default: // a token is there already
	}
}

func (o *observer) take(event watch.Event) {
	now := time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	object, ok := event.Object.(*unstructured.Unstructured)
	if event.Type == watch.Error || !ok {
		o.failed = fmt.Errorf("the watch failed: %v", event.Object)
		return
	}
	name := object.GetName()
	if event.Type == watch.Deleted {
		delete(o.existing, name)
		return
	}
	phase, _, _ := unstructured.NestedString(object.Object, "status", "phase")
	cluster, _, _ := unstructured.NestedString(object.Object, "spec", "cluster")
	if phase != "Ready" || cluster == "" {
		cluster = ""
	} else if o.existing[name] == "" {
		o.ready.Add(now.Sub(o.started[name]))
	}
	if o.existing[name] == "" {
		o.existing[name] = cluster
	}
}

// starting notes that the creation of a workspace begins now.
func (o *observer) starting(name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.started[name] = time.Now()
}

// clusters returns the logical clusters of the workspaces that are ready.
func (o *observer) clusters() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var clusters []string
	for _, cluster := range o.existing {
		if cluster != "" {
			clusters = append(clusters, cluster)
		}
	}
	slices.Sort(clusters)
	return clusters
}

func (o *observer) waitReady(ctx context.Context, count int) error {
	return o.wait(ctx, func() bool { return o.ready.Count() >= count })
}

func (o *observer) waitGone(ctx context.Context) error {
	return o.wait(ctx, func() bool { return len(o.existing) == 0 })
}

// wait waits until the condition, which is called with the lock held, is true.
func (o *observer) wait(ctx context.Context, condition func() bool) error {
	for {
		o.mu.Lock()
		met, failed := condition(), o.failed
		o.mu.Unlock()
		switch {
		case met:
			return nil
		case failed != nil:
			return failed
		}
		select {
		case <-o.changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
