// Command dex is the OpenID Connect issuer dex for tests with users of external issuers. It stores all data in memory,
// so that it has new keys after each start. It accepts any password. The user name of a login is the JSON of a
// connector.Identity.
//
// The token endpoint below /expired returns expired tokens. The one below /other returns tokens of another issuer with
// the same keys.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/dexidp/dex/connector"
	"github.com/dexidp/dex/server"
	"github.com/dexidp/dex/storage"
	"github.com/dexidp/dex/storage/memory"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"
)

// connectorType is the type, ID and name of the connector.
const connectorType = "identity"

// identityConnector accepts all logins. The user name is the JSON of the identity.
type identityConnector struct{}

// Open implements server.ConnectorConfig.
func (identityConnector) Open(string, logrus.FieldLogger) (connector.Connector, error) {
	return identityConnector{}, nil
}

// Prompt implements connector.PasswordConnector.
func (identityConnector) Prompt() string { return "Identity" }

// Login implements connector.PasswordConnector.
func (identityConnector) Login(_ context.Context, _ connector.Scopes, name, _ string) (connector.Identity, bool, error) {
	var identity connector.Identity
	err := json.Unmarshal([]byte(name), &identity)
	return identity, err == nil, err
}

func main() {
	if err := serve(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve() error {
	issuer := flag.String("issuer", "", "`URL` of the issuer, without a path, which is listened at")
	cert := flag.String("tls-cert-file", "", "serving certificate")
	key := flag.String("tls-private-key-file", "", "its key")
	clients := flag.String("clients", "", "client IDs, separated by commas; each is its own secret")
	redirect := flag.String("redirect-uri", "", "`URL` of the clients")
	flag.Parse()

	web, err := os.MkdirTemp("", "dex")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(web) }()
	if err := pages(web); err != nil {
		return err
	}
	log := logrus.New()
	var known []storage.Client
	for id := range strings.SplitSeq(*clients, ",") {
		known = append(known, storage.Client{ID: id, Secret: id, RedirectURIs: []string{*redirect}})
	}
	server.ConnectorsConfig[connectorType] = func() server.ConnectorConfig { return identityConnector{} }
	store := storage.WithStaticConnectors(memory.New(log), []storage.Connector{{ID: connectorType, Type: connectorType, Name: connectorType}})
	store = storage.WithStaticClients(store, known)
	open := func(path string, lifetime time.Duration) (http.Handler, error) {
		return server.NewServer(context.Background(), server.Config{
			Issuer: *issuer + path, Storage: store, SkipApprovalScreen: true, IDTokensValidFor: lifetime,
			Web: server.WebConfig{Dir: web}, Logger: log, PrometheusRegistry: prometheus.NewRegistry(),
		})
	}
	// They have one store, so that each finishes the login that another began, and
	// one set of keys.
	dex, err1 := open("", time.Hour)
	expired, err2 := open("", time.Nanosecond)
	other, err3 := open("/other", time.Hour)
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/", dex)
	mux.Handle("/other/", other)
	mux.Handle("/expired/", http.StripPrefix("/expired", expired))
	front := &http.Server{Addr: strings.TrimPrefix(*issuer, "https://"), Handler: mux, ReadHeaderTimeout: time.Minute}
	return front.ListenAndServeTLS(*cert, *key)
}

// pages creates files that dex requires but that the tests do not use.
func pages(dir string) error {
	var errs []error
	for _, name := range []string{"static", "themes/coreos", "templates"} {
		errs = append(errs, os.MkdirAll(filepath.Join(dir, name), 0o700))
	}
	for _, name := range []string{"approval", "login", "password", "oob", "error"} {
		errs = append(errs, os.WriteFile(filepath.Join(dir, "templates", name+".html"), []byte(name), 0o600))
	}
	return errors.Join(errs...)
}
