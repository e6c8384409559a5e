package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
)

// measureWorkspaces creates workspaces, measures the idle server and deletes them.
func (o *options) measureWorkspaces(ctx context.Context, to *column, s server) error {
	if !s.direct.tenants {
		return nil
	}
	w := &workspaceRun{target: s.workspaces().in("root"), run: newRun()}
	before, err := o.quietUsage(ctx, s)
	if err != nil {
		return err
	}
	ready, err := w.create(ctx, o.creators, o.workspaces)
	if err != nil {
		return errors.Join(err, w.remove(ctx))
	}
	with := fmt.Sprintf("with %d workspaces: ", o.workspaces)
	to.add(fmt.Sprintf("workspaces Ready, %d creators", o.creators), "/s", ready.perSecond(),
		fmt.Sprintf("p50 %.0f ms, p99 %.0f ms", ready.percentile(0.5), ready.percentile(0.99)))
	if s.pid != 0 {
		created, err := usageOf(s.pid)
		if err != nil {
			return err
		}
		to.add("CPU time per workspace", "ms", float64(created.processor-before.processor)/float64(time.Millisecond)/float64(o.workspaces), "until Ready, all processes")
	}
	full, err := o.quietUsage(ctx, s)
	if err != nil {
		return err
	}
	if s.pid != 0 {
		to.add("memory per workspace", "KiB", float64(full.anonymous-before.anonymous)/(1<<10)/float64(o.workspaces), fmt.Sprintf("anonymous, all processes, %s after the last was Ready", o.quietPeriod))
		if err := o.measureIdleCPU(ctx, to, with+"idle CPU", s.pid); err != nil {
			return err
		}
	}
	begin := time.Now()
	if err := errors.Join(w.remove(ctx), w.wait(ctx, func() bool { return len(w.existing) == 0 })); err != nil {
		return err
	}
	took := time.Since(begin).Seconds()
	to.add(with+"deletion of all, below one parent", "s", took, fmt.Sprintf("%.1f/s", float64(o.workspaces)/took))
	after, err := o.quietUsage(ctx, s)
	if err == nil && s.pid != 0 {
		to.add(with+"memory after the deletion, relative to before", "", float64(after.anonymous)/float64(before.anonymous), "anonymous, all processes")
	}
	return err
}

// workspaceRun creates and deletes workspaces below the logical cluster of the target.
type workspaceRun struct {
	target target
	run    string

	mu      sync.Mutex
	started map[string]time.Time
	// existing contains the logical clusters of the workspaces, which are empty until Ready.
	existing map[string]string
	ready    []time.Duration
	failed   error
	// changed has an element after an event.
	changed chan struct{}
}

var workspacesGVR = tenancyv1alpha1.SchemeGroupVersion.WithResource("workspaces")

// create creates workspaces and waits until all are Ready. The timings are those from the request
// until a watch reports the phase Ready.
func (w *workspaceRun) create(ctx context.Context, creators, count int) (timings, error) {
	clients, err := clientsOf(creators, w.target.dynamic)
	if err != nil {
		return timings{}, err
	}
	if err := w.observe(ctx, clients[0].Resource(workspacesGVR)); err != nil {
		return timings{}, err
	}
	begin := time.Now()
	if _, err = repeat(ctx, bounds{limit: count}, clients, func(ctx context.Context, client dynamic.Interface, n int) error {
		name := fmt.Sprintf("bench-%s-%d", w.run, n)
		w.mu.Lock()
		w.started[name] = time.Now()
		w.mu.Unlock()
		object := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": workspacesGVR.GroupVersion().String(), "kind": "Workspace", "spec": map[string]any{},
			"metadata": map[string]any{"name": name, "labels": map[string]any{runLabel: w.run}},
		}}
		_, err := client.Resource(workspacesGVR).Create(ctx, object, metav1.CreateOptions{})
		return err
	}); err != nil {
		return timings{}, fmt.Errorf("creating workspaces: %w", err)
	}
	if err := w.wait(ctx, func() bool { return len(w.ready) >= count }); err != nil {
		return timings{}, fmt.Errorf("waiting until %d workspaces are Ready: %w", count, err)
	}
	return timings{each: slices.Sorted(slices.Values(w.ready)), elapsed: time.Since(begin)}, nil
}

// remove starts the deletion of all workspaces of the run, also after an interruption.
func (w *workspaceRun) remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Minute)
	defer cancel()
	client, err := w.target.dynamic()
	if err != nil {
		return err
	}
	for {
		err := client.Resource(workspacesGVR).DeleteCollection(ctx, metav1.DeleteOptions{}, ofRun(w.run))
		switch {
		case err == nil:
			return nil
		case !apierrors.IsTimeout(err) || ctx.Err() != nil: // a large collection exceeds the server's request timeout
			return fmt.Errorf("deleting workspaces: %w", err)
		}
	}
}

// clusters returns the logical clusters of the workspaces.
func (w *workspaceRun) clusters() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Collect(maps.Values(w.existing))
}

// observe watches the workspaces of the run until the context ends.
func (w *workspaceRun) observe(ctx context.Context, client dynamic.ResourceInterface) error {
	list, err := client.List(ctx, ofRun(w.run))
	if err != nil {
		return fmt.Errorf("listing workspaces: %w", err)
	}
	options := ofRun(w.run)
	options.ResourceVersion = list.GetResourceVersion()
	events, err := client.Watch(ctx, options)
	if err != nil {
		return fmt.Errorf("watching workspaces: %w", err)
	}
	w.started, w.existing, w.changed = map[string]time.Time{}, map[string]string{}, make(chan struct{}, 1)
	go func() {
		for event := range events.ResultChan() {
			w.take(event)
		}
		w.take(watch.Event{Type: watch.Error})
	}()
	return nil
}

func (w *workspaceRun) take(event watch.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	object, ok := event.Object.(*unstructured.Unstructured)
	switch {
	case event.Type == watch.Error || !ok:
		if w.failed == nil {
			w.failed = fmt.Errorf("the watch ended: %v", event.Object)
		}
	case event.Type == watch.Deleted:
		delete(w.existing, object.GetName())
	case w.existing[object.GetName()] == "":
		phase, _, _ := unstructured.NestedString(object.Object, "status", "phase")
		cluster, _, _ := unstructured.NestedString(object.Object, "spec", "cluster")
		if phase == "Ready" {
			w.ready = append(w.ready, time.Since(w.started[object.GetName()]))
		} else {
			cluster = ""
		}
		w.existing[object.GetName()] = cluster
	}
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// wait waits until the condition, which is called with the lock held, is true.
func (w *workspaceRun) wait(ctx context.Context, condition func() bool) error {
	for {
		w.mu.Lock()
		met, failed := condition(), w.failed
		w.mu.Unlock()
		switch {
		case met:
			return nil
		case failed != nil:
			return failed
		}
		select {
		case <-w.changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
