/*
 * What mediaworker needs of PJSIP and the Python binding does not have: every
 * request is shown to the worker before a transaction exists for it, the names
 * of hosts are looked up by the worker, and transports can be asked and closed.
 * tools/build_pjsip.sh compiles this file into the binding; sip/pjsip/native.py
 * and sip/pjsip/resolver.py call it.
 *
 * The interface is flat, for ctypes: numbers, byte strings and opaque pointers.
 * All of it is called on the thread that polls PJSIP, between pjsua_init() and
 * pjsua_destroy(). A change to a signature or to the meaning of one raises
 * MEDIAWORKER_INTERFACE here and in native.py.
 *
 * PJSIP and this addition to it are under the GPL, version 2 or later.
 */
#include <pjsua-lib/pjsua.h>
#include <pjsua-lib/pjsua_internal.h>

#define MEDIAWORKER_INTERFACE 3


/* The version of this interface. */
int mediaworker_interface(void)
{
    return MEDIAWORKER_INTERFACE;
}

/* The epoll descriptor that holds all of PJSIP's sockets. */
int mediaworker_poll_descriptor(void)
{
    pj_ioqueue_t *ioqueue = pjsip_endpt_get_ioqueue(pjsua_get_pjsip_endpt());

    return *(int*)pj_ioqueue_get_os_handle(ioqueue);
}


/*
 * Requests
 *
 * A module between PJSIP's transport layer (8) and its transaction layer (16)
 * sees every message that PJSIP has parsed. The callback for a request returns
 * 1 to let it pass; with any other result it goes no further, so a callback
 * that fails lets nothing pass. Texts and lengths are those of `enum field`;
 * they, and the request itself, are valid until the callback returns.
 */
enum field
{
    FIELD_MESSAGE,      /* the whole request, as it came                    */
    FIELD_METHOD,       /* of the request line                              */
    FIELD_CSEQ_METHOD,
    FIELD_CALL_ID,
    FIELD_BRANCH,       /* of the topmost Via                               */
    FIELD_TO_TAG,       /* empty outside of a dialog                        */
    FIELD_SOURCE,       /* the address that it came from                    */
    FIELD_COUNT
};

typedef int (*mediaworker_on_request)(pjsip_rx_data *request,
                                      pjsip_transport *transport,
                                      int connected, int cseq,
                                      const char *const texts[],
                                      const int lengths[]);
typedef void (*mediaworker_on_response)(pjsip_transport *transport);

static mediaworker_on_request on_request_cb;
static mediaworker_on_response on_response_cb;

/*
 * Requests within a call go to the peer by the connection by which its newest
 * one came: it may have come back by another, and the end of the one before is
 * not noticed when its host has died.
 */
static void follow(pjsip_rx_data *request)
{
    pjsip_transport *tp = request->tp_info.transport;
    const pjsip_cseq_hdr *cseq = request->msg_info.cseq;
    pjsip_dialog *dlg;

    if (!(tp->flag & PJSIP_TRANSPORT_RELIABLE) ||
        cseq->method.id == PJSIP_CANCEL_METHOD)
    {
        return;
    }
    dlg = pjsip_ua_find_dialog(&request->msg_info.cid->id,
                               &request->msg_info.to->tag,
                               &request->msg_info.from->tag, PJ_FALSE);
    if (dlg == NULL || dlg->came_by == tp || cseq->cseq < dlg->remote.cseq ||
        pjsip_transport_add_ref(tp) != PJ_SUCCESS)
    {
        return;
    }
    if (dlg->came_by)
        pjsip_transport_dec_ref(dlg->came_by);
    dlg->came_by = tp;
}

/*
 * Where PJSIP expects a session description it is shown no body without one: a
 * recording client may send nothing but metadata, which the worker reads.
 */
static void hide_other_body(pjsip_rx_data *request)
{
    pjsip_msg *msg = request->msg_info.msg;

    if (msg->body == NULL ||
        (msg->line.req.method.id != PJSIP_INVITE_METHOD &&
         pj_stricmp2(&msg->line.req.method.name, "UPDATE") != 0))
    {
        return;
    }
    if (pjsip_get_sdp_info(request->tp_info.pool, msg->body, NULL,
                           NULL)->body.ptr == NULL)
    {
        msg->body = NULL;
    }
}

static pj_bool_t on_rx_request(pjsip_rx_data *rdata)
{
    const pjsip_transport *tp = rdata->tp_info.transport;
    const pj_str_t *method = &rdata->msg_info.msg->line.req.method.name;
    const pj_str_t *cseq_method = &rdata->msg_info.cseq->method.name;
    const pj_str_t *branch = &rdata->msg_info.via->branch_param;
    const char *const texts[FIELD_COUNT] = {
        rdata->msg_info.msg_buf, method->ptr, cseq_method->ptr,
        rdata->msg_info.cid->id.ptr, branch->ptr,
        rdata->msg_info.to->tag.ptr, rdata->pkt_info.src_name
    };
    const int lengths[FIELD_COUNT] = {
        rdata->msg_info.len, (int)method->slen, (int)cseq_method->slen,
        (int)rdata->msg_info.cid->id.slen, (int)branch->slen,
        (int)rdata->msg_info.to->tag.slen,
        (int)pj_ansi_strlen(rdata->pkt_info.src_name)
    };

    /* RFC 3261 section 18.2.2 sends answers to any address, or name, that the
     * Via gives as `maddr`. The only use of that is multicast, and everybody
     * else's addresses can be put there: answers go to the source.
     */
    rdata->msg_info.via->maddr_param.slen = 0;

    if ((*on_request_cb)(rdata, rdata->tp_info.transport,
                         (tp->flag & PJSIP_TRANSPORT_RELIABLE) != 0,
                         rdata->msg_info.cseq->cseq, texts, lengths) != 1)
    {
        return PJ_TRUE;
    }
    follow(rdata);
    hide_other_body(rdata);
    return PJ_FALSE;
}

static pj_bool_t on_rx_response(pjsip_rx_data *rdata)
{
    (*on_response_cb)(rdata->tp_info.transport);
    return PJ_FALSE;
}

/* Show requests and responses from now on, until PJSIP's endpoint ends. */
int mediaworker_filter_start(mediaworker_on_request on_request,
                             mediaworker_on_response on_response)
{
    static pjsip_module filter_module;

    on_request_cb = on_request;
    on_response_cb = on_response;
    pj_bzero(&filter_module, sizeof(filter_module));
    filter_module.name = pj_str("mod-mediaworker-filter");
    filter_module.id = -1;
    filter_module.priority = 12;
    filter_module.on_rx_request = &on_rx_request;
    filter_module.on_rx_response = &on_rx_response;
    return pjsip_endpt_register_module(pjsua_get_pjsip_endpt(),
                                       &filter_module);
}

/*
 * What PJSIP drops because it cannot be read as a message. The callback gets
 * the transport and the bytes, which are valid until it returns; where they
 * came from PJSIP does not say for UDP.
 */
typedef void (*mediaworker_on_dropped)(pjsip_transport *transport,
                                       const void *data, int length);

static mediaworker_on_dropped on_dropped_cb;

static void on_dropped(pjsip_tp_dropped_data *dropped)
{
    if (dropped->status != PJ_EIGNORED)     /* else it keeps a NAT open */
        (*on_dropped_cb)(dropped->tp, dropped->data, (int)dropped->len);
}

/* Tell of what is dropped from now on, until PJSIP's endpoint ends. */
int mediaworker_dropped_start(mediaworker_on_dropped on_dropped_message)
{
    pjsip_tpmgr *manager = pjsip_endpt_get_tpmgr(pjsua_get_pjsip_endpt());

    on_dropped_cb = on_dropped_message;
    return pjsip_tpmgr_set_drop_data_cb(manager, &on_dropped);
}

/* Answer without a transaction, with headers beside those that any answer has. */
int mediaworker_answer(pjsip_rx_data *request, int status, int count,
                       const char *const names[], const char *const values[])
{
    pjsip_hdr headers;
    int i;

    if (status / 100 == 2)
        follow(request);
    pj_list_init(&headers);
    for (i = 0; i < count; ++i) {
        pj_str_t name = pj_str((char*)names[i]);
        pj_str_t value = pj_str((char*)values[i]);

        pj_list_push_back(&headers, pjsip_generic_string_hdr_create(
                              request->tp_info.pool, &name, &value));
    }
    return pjsip_endpt_respond_stateless(pjsua_get_pjsip_endpt(), request,
                                         status, NULL, &headers, NULL);
}

/*
 * Whether PJSIP finds a session description in a request, 1 or 0. If it does,
 * it is shown this one instead (NULL: what there is).
 */
int mediaworker_describe(pjsip_rx_data *request, const char *text)
{
    pjsip_msg_body *body = request->msg_info.msg->body;
    pjsip_multipart_part *part;
    const pjsip_sdp_info *found;
    pj_str_t copy;

    if (body == NULL)
        return 0;
    found = pjsip_get_sdp_info(request->tp_info.pool, body, NULL, NULL);
    if (found->body.ptr == NULL || found->body.slen <= 0)
        return 0;
    if (text == NULL)
        return 1;
    if (body->data != found->body.ptr) {
        part = pjsip_multipart_get_first_part(body);
        while (part && (!part->body || part->body->data != found->body.ptr))
            part = pjsip_multipart_get_next_part(body, part);
        if (part == NULL)
            return 0;
        body = part->body;
    }
    pj_strdup2_with_null(request->tp_info.pool, &copy, text);
    body->data = copy.ptr;
    body->len = (unsigned)copy.slen;
    return 1;
}

/*
 * For tests: what PJSIP makes of two descriptions, the offer and its answer, of
 * which one (`ours`: 0 the offer, 1 the answer) is local. Writes the local one
 * as PJSIP would use it; returns its length, or a negative status.
 */
int mediaworker_negotiate(const char *offer, const char *answer, int ours,
                          char *out, int size)
{
    static pj_caching_pool caching;
    pj_pool_t *pool;
    pj_str_t texts[2];
    pjmedia_sdp_session *sessions[2];
    const pjmedia_sdp_session *active;
    pjmedia_sdp_neg *neg;
    int i, result = PJ_SUCCESS;

    if (caching.factory.policy.block_alloc == NULL) {
        if ((result = pj_init()) != PJ_SUCCESS)
            return -result;
        pj_caching_pool_init(&caching, NULL, 0);
    }
    pool = pj_pool_create(&caching.factory, "negotiate", 16000, 16000, NULL);
    for (i = 0; i < 2 && result == PJ_SUCCESS; ++i) {
        pj_strdup2_with_null(pool, &texts[i], i ? answer : offer);
        result = pjmedia_sdp_parse(pool, texts[i].ptr, texts[i].slen,
                                   &sessions[i]);
        if (result == PJ_SUCCESS)
            result = pjmedia_sdp_validate(sessions[i]);
    }
    if (result == PJ_SUCCESS && ours) {
        result = pjmedia_sdp_neg_create_w_remote_offer(pool, sessions[1],
                                                       sessions[0], &neg);
    } else if (result == PJ_SUCCESS) {
        result = pjmedia_sdp_neg_create_w_local_offer(pool, sessions[0], &neg);
        if (result == PJ_SUCCESS)
            result = pjmedia_sdp_neg_set_remote_answer(pool, neg, sessions[1]);
    }
    if (result == PJ_SUCCESS)
        result = pjmedia_sdp_neg_negotiate(pool, neg, 0);
    if (result == PJ_SUCCESS)
        result = pjmedia_sdp_neg_get_active_local(neg, &active);
    result = result == PJ_SUCCESS ? pjmedia_sdp_print(active, out, size)
                                  : -result;
    pj_pool_release(pool);
    return result;
}


/*
 * Names
 *
 * PJSIP asks for the addresses of names here (pjsip_ext_resolver; the build's
 * patch lets addresses go another way). The callback returns 1 when it will
 * call mediaworker_found() once, then or later; with any other result the name
 * has no address. Its port is 0 and its transport TRANSPORT_ANY where the URI
 * leaves that to the DNS (RFC 3263).
 */
enum transport
{
    TRANSPORT_ANY,
    TRANSPORT_UDP,
    TRANSPORT_TCP,
    TRANSPORT_TLS
};

typedef struct mediaworker_query
{
    pj_str_t                    name;
    void                       *token;
    pjsip_resolver_callback    *answer;
} mediaworker_query;

typedef int (*mediaworker_on_name)(mediaworker_query *query, const char *name,
                                   int length, int port, int transport,
                                   int ipv6_only);

static mediaworker_on_name on_name_cb;

static void on_resolve(pjsip_resolver_t *resolver, pj_pool_t *pool,
                       const pjsip_host_info *target, void *token,
                       pjsip_resolver_callback *answer)
{
    /* The pool lives as long as what is to be sent, which waits for this. */
    mediaworker_query *query = PJ_POOL_ZALLOC_T(pool, mediaworker_query);
    enum transport transport = TRANSPORT_ANY;

    PJ_UNUSED_ARG(resolver);
    if (target->flag & PJSIP_TRANSPORT_SECURE)
        transport = TRANSPORT_TLS;
    else if (target->flag & PJSIP_TRANSPORT_RELIABLE)
        transport = TRANSPORT_TCP;
    else if (target->type != PJSIP_TRANSPORT_UNSPECIFIED)
        transport = TRANSPORT_UDP;
    pj_strdup(pool, &query->name, &target->addr.host);
    query->token = token;
    query->answer = answer;
    if ((*on_name_cb)(query, query->name.ptr, (int)query->name.slen,
                      target->addr.port, transport,
                      (target->type & PJSIP_TRANSPORT_IPV6) != 0) != 1)
    {
        (*answer)(PJ_ERESOLVE, token, NULL);
    }
}

/* Ask for names from now on, until PJSIP's endpoint ends. */
int mediaworker_names_start(mediaworker_on_name on_name)
{
    static pjsip_ext_resolver resolver = { &on_resolve };

    on_name_cb = on_name;
    return pjsip_endpt_set_ext_resolver(pjsua_get_pjsip_endpt(), &resolver);
}

/* Where the servers of a name are, the best first; none: it has none. */
void mediaworker_found(mediaworker_query *query, int count,
                       const char *const addresses[], const int ports[],
                       const int transports[])
{
    static const pjsip_transport_type_e types[] = {
        PJSIP_TRANSPORT_UDP, PJSIP_TRANSPORT_UDP, PJSIP_TRANSPORT_TCP,
        PJSIP_TRANSPORT_TLS
    };
    pjsip_server_addresses found;
    int i;

    pj_bzero(&found, sizeof(found));
    for (i = 0; i < count && found.count < PJ_ARRAY_SIZE(found.entry); ++i) {
        pjsip_server_address_record *record = &found.entry[found.count];
        pj_str_t text = pj_str((char*)addresses[i]);
        pj_bool_t ipv6 = pj_strchr(&text, ':') != NULL;
        pjsip_transport_type_e type = types[transports[i]];

        if (pj_sockaddr_init(ipv6 ? pj_AF_INET6() : pj_AF_INET(),
                             &record->addr, &text,
                             (pj_uint16_t)ports[i]) != PJ_SUCCESS)
        {
            continue;
        }
        record->name = query->name;
        record->type = ipv6 ? (pjsip_transport_type_e)
                              (type | PJSIP_TRANSPORT_IPV6) : type;
        record->addr_len = pj_sockaddr_get_len(&record->addr);
        ++found.count;
    }
    if (found.count)
        (*query->answer)(PJ_SUCCESS, query->token, &found);
    else
        (*query->answer)(PJ_ERESOLVE, query->token, NULL);
}


/* Transports */

/*
 * Write the address of a connection's other end, without a port, and set the
 * port. Returns 1 when the other end has opened the connection, otherwise 0.
 */
int mediaworker_peer(const pjsip_transport *transport, char *address, int size,
                     int *port)
{
    const pj_sockaddr *peer = &transport->key.rem_addr;

    if (pj_sockaddr_print(peer, address, size, 0) == NULL)
        *address = '\0';
    *port = pj_sockaddr_get_port(peer);
    return transport->dir == PJSIP_TP_DIR_INCOMING;
}

/* Close a connection whose end PJSIP has not reported yet. */
int mediaworker_close(pjsip_transport *transport)
{
    return pjsip_transport_shutdown2(transport, PJ_TRUE);
}

/*
 * Open a TLS listener again, at its port of "host" (empty: any address), with
 * what is in the files of its certificate now. Connections go on with theirs.
 */
int mediaworker_tls_restart(pjsua_transport_id id, const char *host)
{
    pjsip_tpfactory *factory;
    pjsip_host_port published;
    pj_sockaddr local;
    pj_str_t address;
    char name[PJ_MAX_HOSTNAME];
    pj_status_t status;

    PJ_ASSERT_RETURN(id >= 0 && id < (int)PJ_ARRAY_SIZE(pjsua_var.tpdata) &&
                     (pjsua_var.tpdata[id].type & ~PJSIP_TRANSPORT_IPV6) ==
                         PJSIP_TRANSPORT_TLS, PJ_EINVAL);
    factory = pjsua_var.tpdata[id].data.factory;
    if (factory->addr_name.host.slen > (pj_ssize_t)sizeof(name))
        return PJ_ENAMETOOLONG;
    address = pj_str((char*)host);
    status = pj_sockaddr_init(pjsip_transport_type_get_af(factory->type),
                              &local, address.slen ? &address : NULL,
                              pj_sockaddr_get_port(&factory->local_addr));
    if (status != PJ_SUCCESS)
        return status;
    /* A copy: what is handed over must not be what is written to. */
    pj_memcpy(name, factory->addr_name.host.ptr, factory->addr_name.host.slen);
    published.host.ptr = name;
    published.host.slen = factory->addr_name.host.slen;
    published.port = factory->addr_name.port;
    return pjsip_tls_transport_restart(factory, &local, &published);
}
