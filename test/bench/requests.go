package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/kubernetes"
)

// runLabel contains the name of the run on all objects that it creates.
const runLabel = "shardplane.io/bench"

// newRun returns the name of a run.
func newRun() string { return rand.String(5) }

func ofRun(run string) metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: runLabel + "=" + run}
}

// configMap returns the n-th ConfigMap of a run.
func configMap(run string, n, size int) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: fmt.Sprintf("bench-%s-%d", run, n), Labels: map[string]string{runLabel: run}},
		Data:       map[string]string{"data": strings.Repeat("x", size)},
	}
}

// removeRun deletes the ConfigMaps of a run, also after an interruption.
func removeRun(ctx context.Context, client *kubernetes.Clientset, run string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Minute)
	defer cancel()
	if err := client.CoreV1().ConfigMaps(metav1.NamespaceDefault).DeleteCollection(ctx, metav1.DeleteOptions{}, ofRun(run)); err != nil {
		return fmt.Errorf("removing the objects of the run: %w", err)
	}
	return nil
}

// measureWrites creates, updates and deletes ConfigMaps directly at the server.
func (o *options) measureWrites(ctx context.Context, to *column, s server) error {
	clients, err := clientsOf(o.writers, s.direct.in("root").client)
	if err != nil {
		return err
	}
	run := newRun()
	result, err := repeat(ctx, bounds{duration: o.duration}, clients, func(ctx context.Context, c *kubernetes.Clientset, n int) error {
		of, object := c.CoreV1().ConfigMaps(metav1.NamespaceDefault), configMap(run, n, o.size)
		if _, err := of.Create(ctx, object, metav1.CreateOptions{}); err != nil {
			return err
		}
		object.Data["updated"] = "true"
		if _, err := of.Update(ctx, object, metav1.UpdateOptions{}); err != nil {
			return err
		}
		return of.Delete(ctx, object.Name, metav1.DeleteOptions{})
	})
	if err == nil {
		const writes = 3
		to.add(fmt.Sprintf("writes, %d clients", o.writers), "/s", writes*result.perSecond(), "creates, updates and deletes")
	}
	return errors.Join(err, removeRun(ctx, clients[0], run))
}

// measureGets reads ConfigMaps directly and through the front-proxy.
func (o *options) measureGets(ctx context.Context, to *column, s server) error {
	// Reads alternate between the server and its front-proxy.
	const objects, rounds = 500, 4
	direct, err := clientsOf(o.readers, s.direct.in("root").client)
	if err != nil {
		return err
	}
	ways := [][]*kubernetes.Clientset{direct}
	if s.proxy != nil {
		proxied, err := clientsOf(o.readers, s.proxy.in("root").client)
		if err != nil {
			return err
		}
		ways = append(ways, proxied)
	}
	run := newRun()
	_, err = repeat(ctx, bounds{limit: objects}, direct, func(ctx context.Context, c *kubernetes.Clientset, n int) error {
		_, err := c.CoreV1().ConfigMaps(metav1.NamespaceDefault).Create(ctx, configMap(run, n, o.size), metav1.CreateOptions{})
		return err
	})
	results := make([]timings, len(ways))
	for range rounds {
		for i, clients := range ways {
			var result timings
			if err == nil {
				result, err = repeat(ctx, bounds{duration: o.duration / rounds}, clients, func(ctx context.Context, c *kubernetes.Clientset, n int) error {
					_, err := c.CoreV1().ConfigMaps(metav1.NamespaceDefault).Get(ctx, fmt.Sprintf("bench-%s-%d", run, n*7919%objects), metav1.GetOptions{})
					return err
				})
			}
			results[i] = results[i].add(result)
		}
	}
	if err == nil {
		o.reportGets(to, results)
	}
	return errors.Join(err, removeRun(ctx, direct[0], run))
}

func (o *options) reportGets(to *column, results []timings) {
	for _, of := range []struct {
		name string
		q    float64
	}{{"p50", 0.5}, {"p99", 0.99}} {
		work := fmt.Sprintf("GET, %d clients, %s", o.readers, of.name)
		direct := results[0].percentile(of.q)
		to.add(work+", direct", "ms", direct, fmt.Sprintf("%.0f/s", results[0].perSecond()))
		if len(results) > 1 {
			proxied := results[1].percentile(of.q)
			to.add(work+", through the front-proxy", "ms", proxied, fmt.Sprintf("%.0f/s", results[1].perSecond()))
			to.add(work+", front-proxy relative to direct", "", proxied/direct, "")
		}
	}
}
