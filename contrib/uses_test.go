package contrib_test

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"
)

var (
	//go:embed prometheus/prometheus.yml
	prometheusYAML []byte
	//go:embed prometheus/alerts.yml
	alertsYAML []byte
	//go:embed grafana/shardplane.json
	dashboardJSON []byte
)

// Use is a PromQL expression in a file, and its position.
type Use struct {
	Location string
	Expr     string
	Query    Query
}

// Uses returns all expressions in the dashboard and the alerts.
func Uses() ([]Use, error) {
	uses, err := dashboardExprs(dashboardJSON)
	if err != nil {
		return nil, fmt.Errorf("reading grafana/shardplane.json: %w", err)
	}
	alerts, err := alertExprs(alertsYAML)
	if err != nil {
		return nil, fmt.Errorf("reading prometheus/alerts.yml: %w", err)
	}
	uses = append(uses, alerts...)
	for i := range uses {
		uses[i].Query, err = ParseQuery(uses[i].Expr)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", uses[i].Location, err)
		}
	}
	return uses, nil
}

// Job is a scrape job in the Prometheus configuration.
type Job struct {
	Name string `json:"job_name"`
	// Scheme and MetricsPath are used for requests to a target.
	Scheme      string `json:"scheme"`
	MetricsPath string `json:"metrics_path"`
	TLS         struct {
		CAFile   string `json:"ca_file"`
		CertFile string `json:"cert_file"`
		KeyFile  string `json:"key_file"`
	} `json:"tls_config"`
	Static []struct {
		Targets []string          `json:"targets"`
		Labels  map[string]string `json:"labels"`
	} `json:"static_configs"`
}

// Jobs returns the scrape jobs in the Prometheus configuration.
func Jobs() ([]Job, error) {
	var config struct {
		Jobs []Job `json:"scrape_configs"`
	}
	if err := yaml.Unmarshal(prometheusYAML, &config); err != nil {
		return nil, fmt.Errorf("reading prometheus/prometheus.yml: %w", err)
	}
	return config.Jobs, nil
}

// panel is a panel or a row of panels in a dashboard.
type panel struct {
	Title   string  `json:"title"`
	Panels  []panel `json:"panels"`
	Targets []struct {
		Expr string `json:"expr"`
	} `json:"targets"`
}

func dashboardExprs(content []byte) ([]Use, error) {
	var dashboard struct {
		Panels     []panel `json:"panels"`
		Templating struct {
			List []struct {
				Name  string `json:"name"`
				Type  string `json:"type"`
				Query any    `json:"query"`
			} `json:"list"`
		} `json:"templating"`
	}
	if err := json.Unmarshal(content, &dashboard); err != nil {
		return nil, err
	}
	var uses []Use
	for _, variable := range dashboard.Templating.List {
		text, ok := variable.Query.(string)
		if variable.Type != "query" || !ok {
			continue
		}
		expr, label, ok := labelValues(text)
		if !ok {
			return nil, fmt.Errorf("variable %s is not of the form label_values(<metric>, <label>): %q", variable.Name, text)
		}
		uses = append(uses, Use{
			Location: "dashboard, variable " + variable.Name,
			Expr:     fmt.Sprintf("count by (%s) (%s)", label, expr),
		})
	}
	return appendPanels(uses, dashboard.Panels), nil
}

func appendPanels(uses []Use, panels []panel) []Use {
	for _, p := range panels {
		for _, target := range p.Targets {
			uses = append(uses, Use{Location: fmt.Sprintf("dashboard, panel %q", p.Title), Expr: target.Expr})
		}
		uses = appendPanels(uses, p.Panels)
	}
	return uses
}

// labelValues parses Grafana's label_values(<selector>, <label>).
func labelValues(text string) (selector, label string, ok bool) {
	inner, ok := strings.CutPrefix(strings.TrimSpace(text), "label_values(")
	if !ok {
		return "", "", false
	}
	inner, ok = strings.CutSuffix(inner, ")")
	comma := strings.LastIndexByte(inner, ',')
	if !ok || comma < 0 {
		return "", "", false
	}
	return inner[:comma], strings.TrimSpace(inner[comma+1:]), true
}

func alertExprs(content []byte) ([]Use, error) {
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert string `json:"alert"`
				Expr  string `json:"expr"`
			} `json:"rules"`
		} `json:"groups"`
	}
	if err := yaml.Unmarshal(content, &rules); err != nil {
		return nil, err
	}
	var uses []Use
	for _, group := range rules.Groups {
		for _, rule := range group.Rules {
			uses = append(uses, Use{Location: "alert " + rule.Alert, Expr: rule.Expr})
		}
	}
	return uses, nil
}
