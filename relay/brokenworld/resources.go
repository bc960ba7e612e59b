package brokenworld

// The resources of the authorities.

const shop = `
resources:
  - "@type": type.googleapis.com/envoy.config.listener.v3.Listener
    name: web
    address: {socket_address: {address: 0.0.0.0, port_value: 8443}}
    filter_chains:
      - filters:
          - name: http
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
              stat_prefix: web
              rds: {route_config_name: web-routes, config_source: {ads: {}, resource_api_version: V3}}
              http_filters:
                - name: router
                  typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
        transport_socket:
          name: tls
          typed_config:
            "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
            common_tls_context:
              tls_certificate_sds_secret_configs:
                - {name: web-certificate, sds_config: {ads: {}, resource_api_version: V3}}
  - "@type": type.googleapis.com/envoy.config.route.v3.RouteConfiguration
    name: web-routes
    virtual_hosts:
      - name: web
        domains: ["*"]
        routes:
          - {match: {prefix: /cart}, route: {cluster: cart}}
          - {match: {prefix: /pay}, route: {cluster: payments}}
          - {match: {prefix: /}, route: {cluster: front}}
  - "@type": type.googleapis.com/envoy.config.cluster.v3.Cluster
    name: cart
    type: EDS
    connect_timeout: 1s
    eds_cluster_config: {eds_config: {ads: {}, resource_api_version: V3}}
  - "@type": type.googleapis.com/envoy.config.cluster.v3.Cluster
    name: front
    connect_timeout: 1s
    cluster_type:
      name: envoy.clusters.aggregate
      typed_config: {"@type": type.googleapis.com/envoy.extensions.clusters.aggregate.v3.ClusterConfig, clusters: [cart]}
    lb_policy: CLUSTER_PROVIDED
  - "@type": type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment
    cluster_name: cart
    endpoints:
      - locality: {region: eu, zone: a}
        load_balancing_weight: 1
        lb_endpoints:
          - endpoint: {address: {socket_address: {address: 10.0.0.7, port_value: 8080}}}
          - endpoint: {address: {socket_address: {address: 10.0.0.8, port_value: 8080}}}
  - "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret
    name: web-certificate
    tls_certificate:
      certificate_chain: {inline_string: "-----BEGIN CERTIFICATE-----"}
      private_key: {inline_string: "` + Marker + `"}
`

const eu = `
resources:
  - "@type": type.googleapis.com/envoy.config.cluster.v3.Cluster
    name: checkout
    type: EDS
    alt_stat_name: %s
    connect_timeout: 2s
    eds_cluster_config: {eds_config: {ads: {}, resource_api_version: V3}}
`
