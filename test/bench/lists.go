package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// measureLists lists the ConfigMaps of all logical clusters of a shard, or of all namespaces of a
// server without logical clusters.
func (o *options) measureLists(ctx context.Context, to *column, s server) (err error) {
	run := newRun()
	targets := []target{s.direct}
	if s.direct.tenants {
		w := &workspaceRun{target: s.workspaces().in("root"), run: run}
		defer func() { err = errors.Join(err, w.remove(ctx)) }() // with the ConfigMaps
		if targets, err = o.logicalClusters(ctx, s.direct, w); err != nil {
			return err
		}
	}
	clients := make([]*kubernetes.Clientset, len(targets))
	for i, t := range targets {
		if clients[i], err = t.client(); err != nil {
			return err
		}
	}
	if !s.direct.tenants {
		defer func() { err = errors.Join(err, removeRun(ctx, clients[0], run)) }()
	}
	const creators = 16
	if _, err := repeat(ctx, bounds{limit: o.objects}, make([]struct{}, creators), func(ctx context.Context, _ struct{}, n int) error {
		_, err := clients[n%len(clients)].CoreV1().ConfigMaps(metav1.NamespaceDefault).Create(ctx, configMap(run, n, o.size), metav1.CreateOptions{})
		return err
	}); err != nil {
		return fmt.Errorf("creating ConfigMaps: %w", err)
	}
	all, err := kubernetes.NewForConfig(s.direct.in("*").rest())
	if err != nil {
		return err
	}
	return o.timeLists(ctx, to, all.RESTClient())
}

// logicalClusters creates workspaces and returns the logical clusters on the shard.
func (o *options) logicalClusters(ctx context.Context, shard target, w *workspaceRun) ([]target, error) {
	const perWanted = 3 // because other shards get a part of them
	if _, err := w.create(ctx, o.creators, perWanted*o.clusters); err != nil {
		return nil, err
	}
	var targets []target
	for _, cluster := range w.clusters() {
		client, err := shard.in(cluster).client()
		if err != nil {
			return nil, err
		}
		if _, err := client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceDefault, metav1.GetOptions{}); err == nil && len(targets) < o.clusters {
			targets = append(targets, shard.in(cluster))
		}
	}
	if len(targets) == 0 {
		return nil, errors.New("no workspace was scheduled to the shard: increase --clusters")
	}
	return targets, nil
}

// timeLists alternates between complete lists as protobuf and as JSON, and lists in pages.
func (o *options) timeLists(ctx context.Context, to *column, client rest.Interface) error {
	kinds := []struct {
		accept string
		limit  int64
	}{{runtime.ContentTypeProtobuf, 0}, {runtime.ContentTypeJSON, 0}, {runtime.ContentTypeJSON, o.pageSize}}
	took, size := make([]timings, len(kinds)), make([]int64, len(kinds))
	for range o.repeat {
		for i, kind := range kinds {
			begin := time.Now()
			n, err := readList(ctx, client, kind.accept, kind.limit)
			if err != nil {
				return err
			}
			took[i] = took[i].add(timings{each: []time.Duration{time.Since(begin)}})
			size[i] = n
		}
	}
	for i, name := range []string{"protobuf", "JSON"} {
		median := took[i].percentile(0.5)
		to.add(fmt.Sprintf("wildcard LIST, %d ConfigMaps, %s", o.objects, name), "MB/s", float64(size[i])/1e3/median,
			fmt.Sprintf("median %.0f ms, %.1f MB", median, float64(size[i])/1e6))
	}
	to.add(fmt.Sprintf("the same in pages of %d, JSON, relative to the whole list", o.pageSize), "", took[2].percentile(0.5)/took[1].percentile(0.5), "")
	return nil
}

var continueToken = regexp.MustCompile(`"continue":"([^"]*)"`)

// readList reads a list of ConfigMaps, in pages if there is a limit, and returns its size.
func readList(ctx context.Context, client rest.Interface, accept string, limit int64) (size int64, err error) {
	var page bytes.Buffer
	for token := ""; ; {
		request := client.Get().AbsPath("/api/v1/configmaps").SetHeader("Accept", accept)
		into := io.Discard
		if limit > 0 {
			page.Reset()
			into = &page
			request.Param("limit", fmt.Sprint(limit)).Param("continue", token)
		}
		body, err := request.Stream(ctx)
		if err != nil {
			return size, err
		}
		n, err := io.Copy(into, body)
		if err = errors.Join(err, body.Close()); err != nil {
			return size, err
		}
		size += n
		head, _, _ := bytes.Cut(page.Bytes(), []byte(`"items":`))
		match := continueToken.FindSubmatch(head)
		if match == nil {
			return size, nil
		}
		token = string(match[1])
	}
}
